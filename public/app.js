// Every action is a request, the sentence its success is told in, and what follows from it on the page.
const actions = {
  'borrow-code': {
    request: () => post('/api/codes', {}),
    tell: ({ code, expiresAt }) => `Code ${code} is yours until ${timeOf(expiresAt)}. It is filled in under “Sign up”.`,
    follow: ({ code }) => {
      fill('sign-up-code', code);
      fill('look-up-code-code', code);
    },
  },
  'look-up-code': {
    request: ({ code }) => get('/api/codes', { code }),
    tell: ({ code, state, expiresAt }) => `Code ${code} is ${state}${expiresAt ? ` until ${timeOf(expiresAt)}` : ''}.`,
  },
  'sign-up': {
    request: ({ code, username, password }) => post('/api/sign-up', { code, username, password }),
    tell: ({ username, role }) => `The account ${username} is made (${role}). You can sign in with it now.`,
    follow: ({ username }) => {
      fill('sign-up-code', '');
      fill('sign-up-password', '');
      fill('sign-in-username', username);
    },
  },
  'sign-in': {
    request: ({ username, password }) => post('/api/sign-in', { username, password }),
    tell: ({ username, role }) => `You are signed in as ${username} (${role}).`,
    follow: (account, panel) => {
      fill('sign-in-password', '');
      showSession(account, panel);
    },
  },
  'demo-sign-in': {
    request: ({ role }) => post('/api/demo-sign-in', { role }),
    tell: ({ username, role }) => `You are signed in as ${username} (${role}).`,
    follow: showSession,
  },
  'who-am-i': {
    request: () => get('/api/sign-in'),
    tell: ({ username, role, expiresAt }) => `You are ${username} (${role}). This session lasts until ${timeOf(expiresAt)}.`,
    follow: showSession,
  },
  'sign-out': {
    request: () => ({ method: 'DELETE', path: '/api/sign-in' }),
    tell: () => 'You are signed out.',
    follow: (_, panel) => showSession(null, panel),
  },
  'check-name': {
    request: ({ name }) => get('/api/usernames', { name }),
    tell: ({ name, free }) => `The name ${name} is ${free ? 'free' : 'taken'}.`,
  },
};

// A limit that counts what is in a field refuses that alone: with something else in the field there is no wait.
const limitedFields = { 'failed-sign-ins': 'username' };

const shownHeaders = ['Retry-After', 'RateLimit-Policy', 'RateLimit'];

// A request that hangs must not leave its button dead for good.
const patienceMillis = 30_000;

function start() {
  for (const section of document.querySelectorAll('.action')) section.append(copyOf('answer-template'));
  for (const input of document.querySelectorAll('.field input')) prepareField(input);
  for (const form of document.querySelectorAll('form[data-action]')) form.addEventListener('submit', onSubmit);
  loadSession();
  takeInvite();
}

// An invite's link has its code behind the #, which no server sees. Nor should the next page that is left from here.
function takeInvite() {
  const code = new URLSearchParams(location.hash.slice(1)).get('code');
  if (!code) return;
  history.replaceState(null, '', '#sign-up');
  fill('sign-up-code', code);
  document.getElementById('sign-up').scrollIntoView();
}

async function onSubmit(event) {
  event.preventDefault();
  const form = event.currentTarget;
  if (isPaused(form)) {
    announce(form.querySelector('.wait').textContent || 'Still waiting for the answer.');
    return;
  }
  const action = actions[form.dataset.action];
  const label = event.submitter?.textContent ?? form.dataset.action;
  const values = Object.fromEntries(new FormData(form, event.submitter));
  const request = action.request(values);
  const panel = panelOf(form);

  clearErrors(form);
  showWait(form, '', '');
  setPaused(form, true);
  panel.dataset.state = 'busy';
  panel.dataset.action = form.dataset.action;
  const answer = await send(request);
  setPaused(form, false);

  const sentence = tell(action, answer);
  showAnswer(panel, request, answer, sentence);
  if (answer.ok) action.follow?.(answer.body ?? {}, panel);
  if (answer.status === 401 && form.dataset.action === 'who-am-i') showSession(null, panel);
  if (event.submitter?.id === 'header-sign-out' && answer.ok) document.getElementById('session-state').focus();
  showFieldError(form, answer.body, sentence);
  if (answer.waitSeconds) holdBack(form, label, answer, values);
  announce([sentence, form.querySelector('.wait').textContent].filter(Boolean).join(' '));
}

// Requests

function get(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  return { method: 'GET', path: search ? `${path}?${search}` : path };
}

function post(path, body) {
  return { method: 'POST', path, body };
}

// send asks once and never throws: an answer with status 0 means that none came.
async function send({ method, path, body: content }) {
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
      ok: response.status === 204 || (response.ok && body !== null),
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

function tell(action, { status, ok, body }) {
  if (status === 0) return 'No answer came. The request may or may not have arrived; check the connection before you try again.';
  if (ok) return action.tell(body ?? {});
  return body?.detail || body?.title || `The server answered with status ${status} and nothing that can be told in a sentence.`;
}

// Structured fields (RFC 9651), as far as the RateLimit fields of
// draft-ietf-httpapi-ratelimit-headers need them: a list of strings with parameters.

function limitsOf(headers) {
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

// Answers

function panelOf(form) {
  return form.closest('.action').querySelector('.answer');
}

function showAnswer(panel, request, answer, sentence) {
  panel.dataset.state = answer.ok ? 'ok' : 'stopped';
  panel.querySelector('.status').textContent = answer.status ? `Status ${answer.status}` : 'No answer';
  panel.querySelector('.sentence').textContent = sentence;
  panel.querySelector('.sentence').style.minHeight = '';
  panel.querySelector('.limits').replaceChildren(...answer.limits.map(limitRow));
  panel.querySelector('details').hidden = answer.status === 0;
  panel.querySelector('.raw-head').textContent = rawHead(request, answer);
  panel.querySelector('.raw-body').textContent = rawBody(answer);
}

// outdate says instead of the sentence why it no longer holds, in the room that the sentence had.
function outdate(panel, reason) {
  const sentence = panel.querySelector('.sentence');
  sentence.style.minHeight = `${sentence.offsetHeight}px`;
  sentence.textContent = reason;
  panel.dataset.state = 'past';
}

function limitRow({ name, quota, windowSeconds, remaining, resetSeconds }) {
  const row = copyOf('limit-template');
  row.querySelector('.limit-name').textContent = name;
  row.querySelector('.limit-left').textContent = `${remaining} of ${quota} left`;
  const meter = row.querySelector('meter');
  meter.max = quota;
  meter.value = remaining;
  meter.ariaLabel = `Left of the limit ${name}`;
  const more = row.querySelector('.limit-more');
  const rate = windowSeconds > 0 ? `${quota} per ${windowText(windowSeconds)}` : '';
  more.textContent = rate;
  if (resetSeconds > 0) {
    countDown(row, () => resetSeconds, (left) => {
      more.textContent = [rate, left > 0 ? `renewed in ${durationText(left)}` : 'renewed since this answer'].filter(Boolean).join(', ');
      if (left === 0) row.dataset.state = 'past';
    });
  }
  return row;
}

function rawHead({ method, path }, { status, headers }) {
  const lines = shownHeaders.filter((name) => headers.has(name)).map((name) => `${name}: ${headers.get(name)}`);
  return [`${method} ${path}`, `Status ${status}`, ...lines].join('\n');
}

function rawBody({ text, body }) {
  if (body) return JSON.stringify(body, null, 2);
  return text || '(no body)';
}

// Waiting

// holdBack keeps the form's buttons focusable: a button that vanishes from the keyboard mid-use loses the reader's place.
function holdBack(form, label, { waitSeconds, body }, values) {
  const refused = body?.['violated-policies'] ?? [];
  const field = refused.length === 1 ? limitedFields[refused[0]] : undefined;
  const input = field && form.elements.namedItem(field);
  const isOther = () => Boolean(input) && input.value !== values[field];
  const exception = input ? `, at once for another ${input.labels[0].textContent.toLowerCase()}` : '';

  setPaused(form, true);
  countDown(form, () => (isOther() ? 0 : waitSeconds), (left) => {
    if (left > 0) {
      showWait(form, 'waiting', `Works again in ${durationText(left)}${exception}.`);
      return;
    }
    setPaused(form, false);
    if (isOther()) {
      showWait(form, '', '');
      return;
    }
    showWait(form, 'over', 'Works again now.');
    const panel = panelOf(form);
    if (panel.dataset.action === form.dataset.action) outdate(panel, 'The wait is over: you can try again.');
    announce(`${label}: works again now.`);
  });
}

// countDown calls show with the whole seconds left, at once and at each change down to 0, while element is on the page.
// It goes by the clock, not by ticks, because browsers slow the timers of hidden pages. What is typed into element may
// change the seconds, which count from the start.
function countDown(element, seconds, show) {
  const start = Date.now();
  let shown = seconds();
  show(shown);
  const update = () => {
    const left = Math.max(0, Math.ceil(seconds() - (Date.now() - start) / 1000));
    if (left === 0 || !element.isConnected) {
      clearInterval(timer);
      element.removeEventListener('input', update);
    }
    if (left === shown || !element.isConnected) return;
    shown = left;
    show(left);
  };
  const timer = setInterval(update, 200);
  element.addEventListener('input', update);
}

function isPaused(form) {
  return form.dataset.paused === 'true';
}

function setPaused(form, paused) {
  form.dataset.paused = paused;
  for (const element of form.elements) {
    if (element.type === 'submit') element.ariaDisabled = paused;
  }
}

function showWait(form, state, text) {
  const line = form.querySelector('.wait');
  line.dataset.state = state;
  line.textContent = text;
}

// Fields

function prepareField(input) {
  const error = document.createElement('p');
  error.id = `${input.id}-error`;
  error.className = 'field-error';
  input.after(error);
  input.setAttribute('aria-describedby', [input.getAttribute('aria-describedby'), error.id].filter(Boolean).join(' '));
  input.addEventListener('input', () => setError(input, ''));
  if (input.type === 'password') addReveal(input);
}

function addReveal(input) {
  const box = document.createElement('div');
  box.className = 'password';
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'quiet';
  button.textContent = 'Show';
  button.ariaLabel = 'Show the password';
  button.ariaPressed = 'false';
  button.addEventListener('click', () => {
    const reveal = input.type === 'password';
    input.type = reveal ? 'text' : 'password';
    button.textContent = reveal ? 'Hide' : 'Show';
    button.ariaPressed = reveal;
  });
  input.replaceWith(box);
  box.append(input, button);
}

function showFieldError(form, body, sentence) {
  const input = body?.field && form.elements.namedItem(body.field);
  if (!(input instanceof HTMLInputElement)) return;
  setError(input, sentence);
  input.focus();
}

function clearErrors(form) {
  for (const input of form.querySelectorAll('[aria-invalid]')) setError(input, '');
}

function setError(input, sentence) {
  document.getElementById(`${input.id}-error`).textContent = sentence;
  if (sentence) input.setAttribute('aria-invalid', 'true');
  else input.removeAttribute('aria-invalid');
}

function fill(id, value) {
  const input = document.getElementById(id);
  input.value = value ?? '';
  input.dispatchEvent(new Event('input', { bubbles: true }));
}

// Session

let sessionKnown = false;

async function loadSession() {
  const { ok, status, body } = await send(get('/api/sign-in'));
  // Whoever signed in or out meanwhile has the newer answer.
  if (sessionKnown) return;
  if (ok || status === 401) showSession(ok ? body : null);
  else document.getElementById('session-state').textContent = 'Session unknown';
}

// showSession tells whose session it is, as an answer in teller said. What other answers said of another is outdated.
function showSession(account, teller) {
  sessionKnown = true;
  const state = document.getElementById('session-state');
  const text = account ? `${account.username} (${account.role})` : 'Not signed in';
  if (state.textContent !== text) {
    for (const panel of document.querySelectorAll(':is(#session, #sign-in, #demo-sign-in) .answer[data-state="ok"], #session .answer[data-state="stopped"]')) {
      if (panel !== teller) outdate(panel, 'The session has changed since this answer.');
    }
  }
  state.textContent = text;
  document.getElementById('header-sign-out').hidden = !account;
  document.getElementById('header-sign-in').hidden = Boolean(account);
}

// Words

function announce(text) {
  const announcer = document.getElementById('announcer');
  announcer.textContent = '';
  // The same sentence twice is only read twice if the region was empty in between.
  setTimeout(() => { announcer.textContent = text; }, 50);
}

function timeOf(timestamp) {
  const date = new Date(timestamp);
  if (Number.isNaN(date.getTime())) return String(timestamp);
  const today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString('en-GB', today ? { timeStyle: 'short' } : { dateStyle: 'long', timeStyle: 'short' });
}

function durationText(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return [`${Math.floor(seconds / 60)} min`, seconds % 60 && `${seconds % 60} s`].filter(Boolean).join(' ');
  const minutes = Math.ceil(seconds / 60);
  return [`${Math.floor(minutes / 60)} h`, minutes % 60 && `${minutes % 60} min`].filter(Boolean).join(' ');
}

function windowText(seconds) {
  for (const [unit, size] of [['day', 86400], ['hour', 3600], ['minute', 60], ['second', 1]]) {
    if (seconds % size === 0) return seconds === size ? unit : `${seconds / size} ${unit}s`;
  }
  return `${seconds} seconds`;
}

function copyOf(templateId) {
  return document.getElementById(templateId).content.firstElementChild.cloneNode(true);
}

start();
