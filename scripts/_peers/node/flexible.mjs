// rate-limiter-flexible on better-sqlite3, in a file: node flexible.mjs FILE
import fs from 'node:fs';
import Database from 'better-sqlite3';
import flexible from 'rate-limiter-flexible';
import { serve } from './protocol.mjs';

const db = new Database(process.argv[2]);
db.pragma('journal_mode = WAL');
db.pragma('synchronous = NORMAL');

const limiter = (tableName, points) => new Promise((resolve, reject) => {
  const made = new flexible.RateLimiterSQLite(
    { storeClient: db, storeType: 'better-sqlite3', tableName, points, duration: 3600 },
    (error) => (error ? reject(error) : resolve(made)),
  );
});
const wide = await limiter('wide', 1_000_000_000);
const narrow = await limiter('narrow', 1);
const three = await limiter('three', 3);

// consume rejects with an Error when something is wrong, and with the state when the limit refuses.
const consume = async (limiter, key) => {
  try {
    await limiter.consume(key);
    return true;
  } catch (refusal) {
    if (refusal instanceof Error) throw refusal;
    return false;
  }
};

const version = (name) => JSON.parse(fs.readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
for (let i = 0; i < 1000; i++) await consume(narrow, `client ${i}`);

await serve(
  `rate-limiter-flexible ${version('rate-limiter-flexible')} on better-sqlite3 ${version('better-sqlite3')}, ` +
    `SQLite ${db.prepare('SELECT sqlite_version() AS v').get().v}, Node ${process.version}`,
  {
    allowed: () => consume(three, 'client'),
    decide: async (i) => {
      if (!(await consume(wide, `client ${i}`))) throw new Error('refused');
    },
    refuse: async (i) => {
      if (await consume(narrow, `client ${i}`)) throw new Error('allowed');
    },
  },
);
