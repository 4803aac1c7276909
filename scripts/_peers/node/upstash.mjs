// How many HTTP requests @upstash/ratelimit makes for a decision, counted by a server here in the place of Upstash's REST API,
// which keeps the counters as its two scripts would. It prints a line of JSON for each algorithm.
import crypto from 'node:crypto';
import http from 'node:http';
import { Ratelimit } from '@upstash/ratelimit';
import { Redis } from '@upstash/redis';

const decisions = 200;
const counters = new Map();
const scripts = new Set(); // what the server has compiled, by its hash
let requests = 0;

const charge = (key, by) => {
  counters.set(key, (counters.get(key) ?? 0) + by);
  return counters.get(key);
};

// run is the script's result: of the fixed window, which has one key, [used, limit], of the sliding window [left, limit].
function run(keys, args) {
  const [limit, by] = [Number(args[0]), Number(args.at(-1))];
  if (keys.length === 1) return [charge(keys[0], by), limit];
  const used = counters.get(keys[0]) ?? 0;
  if (used >= limit) return [-1, limit];
  return [limit - charge(keys[0], by), limit];
}

function answer([command, script, count, ...rest]) {
  const keys = rest.slice(0, Number(count));
  const args = rest.slice(Number(count));
  switch (String(command).toLowerCase()) {
    case 'eval':
      scripts.add(crypto.createHash('sha1').update(script).digest('hex'));
      return { result: run(keys, args) };
    case 'evalsha':
      return scripts.has(script) ? { result: run(keys, args) } : { error: 'NOSCRIPT No matching script. Please use EVAL.' };
    default:
      throw new Error(`unknown command ${command}`);
  }
}

const server = http.createServer((request, response) => {
  requests++;
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const asked = JSON.parse(Buffer.concat(chunks));
    const result = request.url === '/pipeline' ? asked.map(answer) : answer(asked);
    response.statusCode = result.error ? 400 : 200;
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify(result));
  });
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));

const redis = new Redis({ url: `http://127.0.0.1:${server.address().port}`, token: 'none', enableTelemetry: false, responseEncoding: false });
for (const [name, make] of [['fixed window', Ratelimit.fixedWindow], ['sliding window', Ratelimit.slidingWindow]]) {
  const limiter = (limit) => new Ratelimit({ redis, limiter: make(limit, '1 h'), analytics: false, prefix: `${name} of ${limit}` });
  const [wide, three] = [limiter(1_000_000), limiter(3)];
  requests = 0;
  if (!(await wide.limit('client 0')).success) throw new Error('refused');
  const first = requests;
  requests = 0;
  const seen = { allowed: 0, refused: 0 };
  for (let i = 0; i < decisions; i++) seen[(await wide.limit(`client ${i}`)).success ? 'allowed' : 'refused']++;
  for (let i = 0; i < 4; i++) seen[(await three.limit('client')).success ? 'allowed' : 'refused']++;
  console.log(JSON.stringify({ algorithm: name, first, later: requests / (decisions + 4), decisions, ...seen }));
}
server.close();
server.closeAllConnections();
