// Requests to this site, and what every answer says about limits.

// A request that hangs must not leave its button dead for good.
const patienceMillis = 30_000;

export function get(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  return { method: 'GET', path: search ? `${path}?${search}` : path };
}

export function post(path, body) {
  return { method: 'POST', path, body };
}

// send asks once and never throws: an answer with status 0 means that none came.
export async function send({ method, path, body: content }) {
  try {
    const response = await fetch(path, {
      method,
      credentials: 'same-origin',
      cache: 'no-store',
      headers: { Accept: 'application/json', ...(content && { 'Content-Type': 'application/json' }) },
      body: content && JSON.stringify(content),
      signal: AbortSignal.timeout(patienceMillis),
    });
    const text = await response.text();
    const body = parseObject(text);
    return {
      status: response.status,
      ok: response.ok && (text === '' || body !== null),
      headers: response.headers,
      text,
      body,
      limits: limitsOf(response.headers),
      waitSeconds: [429, 503].includes(response.status) ? retryAfterOf(response.headers) : 0,
    };
  } catch {
    return { status: 0, ok: false, headers: new Headers(), text: '', body: null, limits: [], waitSeconds: 0 };
  }
}

function parseObject(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === 'object' ? value : null;
  } catch {
    return null;
  }
}

// limitsOf joins RateLimit-Policy and RateLimit, which are structured fields (RFC 9651), as far as
// draft-ietf-httpapi-ratelimit-headers-11 needs these: lists of strings with parameters.
export function limitsOf(headers) {
  const states = new Map(parseList(headers.get('RateLimit')).map((item) => [item.name, item]));
  return parseList(headers.get('RateLimit-Policy')).flatMap(({ name, q, w }) => {
    const { r, t } = states.get(name) ?? {};
    return q > 0 && r >= 0 ? [{ name, quota: q, windowSeconds: w, remaining: r, resetSeconds: t }] : [];
  });
}

// parseList gives {name, key: number, …} for each member. A field that breaks the grammar counts as absent.
function parseList(field) {
  const text = (field ?? '').trim();
  const member = /"((?:[^"\\]|\\["\\])*)"((?: *; *[a-z*][\w.*-]*(?:=(?:"(?:[^"\\]|\\["\\])*"|[^\s",;]+))?)*)(?:[ \t]*,[ \t]*(?=")|$)/y;
  const items = [];
  while (member.lastIndex < text.length) {
    const match = member.exec(text);
    if (!match) return [];
    items.push({ ...parseNumbers(match[2]), name: match[1].replace(/\\(.)/g, '$1') });
  }
  return items;
}

function parseNumbers(parameters) {
  const withoutStrings = parameters.replace(/"(?:[^"\\]|\\.)*"/g, '""');
  return Object.fromEntries(
    [...withoutStrings.matchAll(/; *([a-z*][\w.*-]*)=(\d+)(?=$|[ ;])/g)].map(([, key, digits]) => [key, Number(digits)]),
  );
}

function retryAfterOf(headers) {
  const value = headers.get('Retry-After') ?? '';
  return /^\d+$/.test(value) ? Number(value) : 0;
}
