// Serves a database of the libSQL engine over HTTP as Turso does (POST /v2/pipeline with execute and batch), for tests:
//   node libsql-server.mjs PORT FILE
// Like the Turso server from npm it has one connection for all its clients, returns no baton, and knows no interactive
// transactions. Integers and texts only: Weir's statements take and return nothing else.
import http from 'node:http';
import Database from 'libsql';

const [port, file] = process.argv.slice(2);
const database = new Database(file);
database.defaultSafeIntegers(true);

function encode(value) {
  if (value === null) return { type: 'null' };
  if (typeof value === 'bigint') return { type: 'integer', value: String(value) };
  if (typeof value === 'number') return { type: 'float', value };
  return { type: 'text', value: String(value) };
}

function decode(argument) {
  if (argument.type === 'null') return null;
  return argument.type === 'integer' ? BigInt(argument.value) : argument.value;
}

function execute({ sql, args = [] }) {
  const statement = database.prepare(sql);
  const columns = statement.columns();
  const result = { cols: columns.map(({ name }) => ({ name })), rows: [], affected_row_count: 0, last_insert_rowid: null };
  if (columns.length > 0) {
    result.rows = statement.raw(true).all(args.map(decode)).map((row) => row.map(encode));
  } else {
    result.affected_row_count = statement.run(args.map(decode)).changes;
  }
  return result;
}

function holds(condition, outcomes) {
  switch (condition?.type) {
    case undefined: return true;
    case 'ok': return outcomes[condition.step] === 'ok';
    case 'error': return outcomes[condition.step] === 'error';
    case 'not': return !holds(condition.cond, outcomes);
    case 'and': return condition.conds.every((inner) => holds(inner, outcomes));
    case 'or': return condition.conds.some((inner) => holds(inner, outcomes));
    default: throw new Error(`unknown condition ${condition.type}`);
  }
}

function batch({ steps }) {
  const result = { step_results: steps.map(() => null), step_errors: steps.map(() => null) };
  const outcomes = [];
  steps.forEach(({ stmt, condition }, i) => {
    if (!holds(condition, outcomes)) return;
    try {
      result.step_results[i] = execute(stmt);
      outcomes[i] = 'ok';
    } catch (error) {
      result.step_errors[i] = { message: error.message };
      outcomes[i] = 'error';
    }
  });
  return result;
}

function answer(request) {
  try {
    switch (request.type) {
      case 'execute': return { type: 'ok', response: { type: 'execute', result: execute(request.stmt) } };
      case 'batch': return { type: 'ok', response: { type: 'batch', result: batch(request.batch) } };
      default: throw new Error(`unknown request ${request.type}`);
    }
  } catch (error) {
    return { type: 'error', error: { message: error.message } };
  }
}

http.createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    response.setHeader('Content-Type', 'application/json');
    try {
      const { requests } = JSON.parse(Buffer.concat(chunks));
      response.end(JSON.stringify({ baton: null, base_url: null, results: requests.map(answer) }));
    } catch (error) {
      response.statusCode = 400;
      response.end(JSON.stringify({ message: error.message }));
    }
  });
}).listen(Number(port), '127.0.0.1');
