// Lists, tables and plots of what was asked for.

import { bars } from './plots.js';
import { countText, durationText, timeOf } from './words.js';

const scores = [1, 2, 3, 4, 5];

export function showEntries({ items }) {
  put('read-entries', list('entries', items.map((entry) => {
    const item = make('li', '');
    item.append(facts(entry), texts(entry));
    return item;
  })));
}

// showPickable shows entries to score one of. Their radio buttons belong to the form that scores.
export function showPickable({ items }) {
  document.getElementById('picked').textContent = 'No entry is picked yet.';
  put('read-all-entries', list('entries', items.map((entry) => {
    const item = make('li', '');
    const label = make('label', '');
    const radio = document.createElement('input');
    Object.assign(radio, { type: 'radio', name: 'entry', value: entry.id });
    radio.setAttribute('form', 'score-form');
    radio.addEventListener('change', () => {
      document.getElementById('picked').textContent = `Entry ${entry.id}, of ${entry.model}.`;
    });
    label.append(radio, facts(entry));
    item.append(label, texts(entry));
    return item;
  })));
}

function facts({ id, model, tokens, createdAt }) {
  const line = make('span', '', 'facts');
  line.append(make('strong', model), ` ${countText(tokens, 'token')}, ${timeOf(createdAt)}, entry ${id}`);
  return line;
}

function texts({ prompt, response }) {
  const details = make('details', '');
  const start = prompt.length > 60 ? `${prompt.slice(0, 60)}…` : prompt;
  details.append(make('summary', start), make('pre', prompt, 'raw-head'), make('pre', response || '(no response)', 'raw-body'));
  return details;
}

// showRows shows what a statement gave. What is null, and what only looks like a number, can be told from the rest.
export function showRows({ columns, rows, truncated }) {
  if (!columns.length) {
    put('sandbox-sql');
    return;
  }
  const parts = [table('The rows', columns, rows.map((row) => row.map((value) => cell(value))))];
  if (truncated) parts.push(make('p', `These are the first ${rows.length} rows; there are more.`, 'notice'));
  put('sandbox-sql', ...parts);
}

function cell(value) {
  if (value === null) return { text: 'NULL', kind: 'null' };
  if (typeof value === 'number') return { text: String(value), kind: 'number' };
  return { text: typeof value === 'string' ? value : JSON.stringify(value) };
}

// showResults draws the distribution of each model on one scale, its counts below its bars.
export function showResults({ items, truncated }) {
  const max = Math.max(0, ...items.flatMap(({ distribution }) => distribution));
  const parts = [table('Scores by model', ['Model', 'Scores', 'Mean', 'Of 1 to 5'], items.map(({ model, count, mean, distribution }) => [
    { text: model },
    { text: String(count), kind: 'number' },
    { text: mean.toFixed(2), kind: 'number' },
    { node: distributionOf(model, distribution, max) },
  ]))];
  if (truncated) parts.push(make('p', `These are the first ${items.length} models; there are more.`, 'notice'));
  put('read-results', ...(items.length ? parts : []));
}

function distributionOf(model, distribution, max) {
  const box = make('div', '', 'distribution');
  box.append(bars(distribution, max, `${model}: ${scores.map((score, i) => `${distribution[i]} of score ${score}`).join(', ')}`));
  const counts = make('ul', '', 'counts');
  counts.ariaHidden = 'true'; // the bars say it in words
  for (const [i, score] of scores.entries()) {
    const item = make('li', '');
    item.append(make('span', String(distribution[i])), make('span', String(score), 'score'));
    counts.append(item);
  }
  box.append(counts);
  return box;
}

// showRefusals draws a row of bars for each policy that refused, all on one scale of time and of counts, so that no colour
// has to tell them apart. The same numbers are in a table.
export function showRefusals({ from, bucketSeconds, policies, estimated }) {
  const timeOfBucket = (i) => timeOf(Date.parse(from) + i * bucketSeconds * 1000);
  const refusing = policies.map((policy) => ({ ...policy, top: Math.max(...policy.refusals) })).filter(({ top }) => top > 0);
  if (!refusing.length) {
    put('read-refusals');
    return;
  }
  const max = Math.max(...refusing.map(({ top }) => top));
  const plot = list('plot', refusing.map(({ name, refusals, top }) => {
    const row = make('li', '');
    const sum = countText(refusals.reduce((all, n) => all + n, 0), 'refusal');
    const line = make('p', '', 'limit-line');
    line.append(make('span', name, 'limit-name'), make('span', sum, 'limit-left'));
    row.append(line, bars(refusals, max, `${name}: ${sum}, most of them, ${top}, from ${timeOfBucket(refusals.indexOf(top))}`));
    return row;
  }));
  const buckets = refusing[0].refusals.length;
  const axis = make('p', '', 'axis');
  axis.append(
    make('span', timeOfBucket(0)),
    make('span', `each bar ${durationText(bucketSeconds)}, the highest ${estimated ? 'about ' : ''}${max}`),
    make('span', timeOfBucket(buckets)),
  );
  const numbers = make('details', '');
  const rows = [];
  for (let i = buckets - 1; i >= 0; i--) {
    for (const { name, refusals } of refusing) {
      if (refusals[i]) rows.push([{ text: timeOfBucket(i) }, { text: name }, { text: String(refusals[i]), kind: 'number' }]);
    }
  }
  numbers.append(make('summary', 'As a table'), table('Refusals by time and policy', ['From', 'Policy', 'Refusals'], rows));
  put('read-refusals', plot, axis, numbers);
}

export function showAudit({ items }) {
  put('read-audit', ...(items.length ? [table('The audit log', ['Time', 'Policy', 'What'], items.map(({ at, policy, action, until }) => [
    { text: timeOf(at) }, { text: policy }, { text: until ? `${action} until ${timeOf(until)}` : action },
  ]))] : []));
}

export function showAlerts({ items }) {
  put('read-alerts', ...(items.length ? [table('Alerts', ['Time', 'Policy', 'What'], items.map(({ at, policy, kind, windows, attack }) => [
    { text: timeOf(at) }, { text: policy }, { text: `${kind.replaceAll('-', ' ')}, ${attack ? attackText(attack, windows) : countText(windows, 'window')}` },
  ]))] : []));
}

// attackText tells of what was seen when an attack began, and for how long it was.
function attackText({ failures, successes, minutes, accounts, addresses }, seen) {
  return `seen in ${countText(seen, 'minute')}: at first ${failures} of ${failures + successes} sign-ins failed in ${countText(minutes, 'minute')}, `
    + `of about ${countText(accounts, 'account')} from about ${addresses} addresses`;
}

// put replaces what an action has to show.
function put(action, ...parts) {
  const place = document.querySelector(`[data-result="${action}"]`);
  place.replaceChildren(...(parts.length ? parts : [make('p', 'Nothing to show.', 'nothing')]));
  place.scrollTop = 0;
}

function list(className, items) {
  const made = make('ul', '', className);
  made.append(...(items.length ? items : [make('li', 'Nothing to show.', 'nothing')]));
  return made;
}

// table makes one that scrolls sideways by itself, so that the page does not.
function table(caption, columns, rows) {
  const box = make('div', '', 'scroll');
  box.tabIndex = 0;
  box.role = 'group';
  box.ariaLabel = caption;
  const made = make('table', '');
  const head = make('tr', '');
  for (const [i, column] of columns.entries()) {
    const numbers = rows.length > 0 && rows.every((row) => row[i].kind === 'number');
    const th = make('th', column, numbers ? 'number' : '');
    th.scope = 'col';
    head.append(th);
  }
  const body = document.createElement('tbody');
  for (const row of rows) {
    const tr = make('tr', '');
    for (const { text, node, kind } of row) {
      const td = make('td', text ?? '', kind ?? '');
      if (node) td.append(node);
      tr.append(td);
    }
    body.append(tr);
  }
  const thead = document.createElement('thead');
  thead.append(head);
  made.append(make('caption', caption, 'unseen'), thead, body);
  box.append(made);
  return box;
}

function make(name, text, className = '') {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}
