// How an answer is shown: its sentence, a meter for each limit it tells of, and the raw text.

import { durationText, windowText } from './words.js';

const shownHeaders = ['Retry-After', 'RateLimit-Policy', 'RateLimit'];

// The limit over all routes has one place on the page, since every answer tells of it.
const everywhere = 'edge';

export function prepareAnswers() {
  for (const section of document.querySelectorAll('.action')) {
    const panel = copyOf('answer-template');
    panel.querySelector('.sentence').id = `${section.id}-sentence`;
    section.firstElementChild.after(panel);
  }
}

export function panelOf(element) {
  return element.closest('.action').querySelector('.answer');
}

export function showBusy(panel, action) {
  panel.dataset.state = 'busy';
  panel.dataset.action = action;
}

export function showAnswer(panel, request, answer, sentence) {
  panel.dataset.state = answer.ok ? 'ok' : 'stopped';
  panel.querySelector('.status').textContent = answer.status ? `Status ${answer.status}` : 'No answer';
  panel.querySelector('.sentence').textContent = sentence;
  panel.querySelector('.sentence').style.minHeight = '';
  panel.querySelector('.limits').replaceChildren(...answer.limits.filter(({ name }) => name !== everywhere).map(limitRow));
  panel.querySelector('details').hidden = answer.status === 0;
  panel.querySelector('.raw-head').textContent = rawHead(request, answer);
  panel.querySelector('.raw-body').textContent = rawBody(answer);
  showEdge(answer);
}

// showEdge keeps the page's one meter of the limit over all routes up to date with any answer.
export function showEdge({ limits }) {
  const edge = limits.find(({ name }) => name === everywhere);
  if (!edge) return;
  const row = limitRow(edge);
  row.querySelector('.limit-name').textContent = `${edge.name}, all routes`;
  document.getElementById('edge').replaceChildren(row);
}

// clearAnswer takes everything back that the panel has been told.
export function clearAnswer(panel) {
  panel.dataset.state = 'empty';
  panel.querySelector('.status').textContent = 'No answer yet';
  for (const part of panel.querySelectorAll('.sentence, .raw-head, .raw-body')) part.textContent = '';
  panel.querySelector('.limits').replaceChildren();
  panel.querySelector('details').hidden = true;
  panel.querySelector('details').open = false;
}

// outdate says instead of the sentence why it no longer holds, in the room that the sentence had.
export function outdate(panel, reason) {
  const sentence = panel.querySelector('.sentence');
  sentence.style.minHeight = `${sentence.offsetHeight}px`;
  sentence.textContent = reason;
  panel.dataset.state = 'past';
}

function limitRow({ name, quota, windowSeconds, remaining, resetSeconds }) {
  const row = copyOf('limit-template');
  row.dataset.limit = name;
  row.querySelector('.limit-name').textContent = name;
  row.querySelector('.limit-left').textContent = `${remaining.toLocaleString('en-GB')} of ${quota.toLocaleString('en-GB')} left`;
  const meter = row.querySelector('meter');
  meter.max = quota;
  meter.value = Math.min(remaining, quota);
  meter.ariaLabel = `Left of the limit ${name}`;
  const more = row.querySelector('.limit-more');
  const rate = windowSeconds > 0 ? `${quota.toLocaleString('en-GB')} per ${windowText(windowSeconds)}` : '';
  more.textContent = rate;
  if (resetSeconds > 0) {
    countDown(row, () => resetSeconds, (left) => {
      more.textContent = [rate, left > 0 ? `more in ${durationText(left)}` : 'more since this answer'].filter(Boolean).join(', ');
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

// countDown calls show with the whole seconds left, at once and at each change down to 0, while element is on the page.
// It goes by the clock, not by ticks, because browsers slow the timers of hidden pages. What is typed into element may
// change the seconds, which count from the start.
export function countDown(element, seconds, show) {
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

export function announce(text) {
  const announcer = document.getElementById('announcer');
  announcer.textContent = '';
  // The same sentence twice is only read twice if the region was empty in between.
  setTimeout(() => { announcer.textContent = text; }, 50);
}

function copyOf(templateId) {
  return document.getElementById(templateId).content.firstElementChild.cloneNode(true);
}
