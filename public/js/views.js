// Which view is open, and who may see it. The view is what stands behind the # of the address, so that going back works.

import { clearAnswer } from './answers.js';
import { fill, forgetPersonal, isPaused } from './forms.js';

let account = null; // of the session, as the server last told
let known = false; // whether it has told

const first = () => (account ? 'account' : 'sign-in');

// mayBe says whether whoever is signed in may use what is for somebody.
function mayBe(somebody) {
  switch (somebody) {
    case 'guest': return !account;
    case 'member': return Boolean(account);
    case 'admin': return account?.role === 'admin';
    default: return true;
  }
}

export function startViews() {
  takeLink();
  addEventListener('hashchange', () => {
    takeLink();
    if (known) open(location.hash.slice(1), true);
  });
  document.querySelector('.skip').addEventListener('click', (event) => {
    event.preventDefault(); // what stands behind the # stays
    document.getElementById('main').focus();
  });
}

// What the link of a mail brings along, the view that it is for, and the field.
const links = {
  code: { view: 'sign-up', field: 'sign-up-code' },
  reset: { view: 'reset', field: 'reset-password-token' },
};

// takeLink takes what a mail's link brings along. It is behind the #, which no server sees; nor should the next page that is
// left from here.
function takeLink() {
  const brought = new URLSearchParams(location.hash.slice(1));
  for (const [name, { view, field }] of Object.entries(links)) {
    const value = brought.get(name);
    if (!value) continue;
    history.replaceState(null, '', `#${view}`);
    fill(field, value);
    return;
  }
}

export function isSessionKnown() {
  return known;
}

export function isSignedIn() {
  return Boolean(account);
}

// showSession tells whose session it is. When that changes, nothing that the last one was told stays on the page, and the
// first view of the new one opens.
export function showSession(next) {
  const other = !known || next?.username !== account?.username || next?.role !== account?.role;
  if (!other) return;
  const start = !known;
  if (account) forget();
  account = next;
  known = true;
  tellState(...(account ? [account.username, `(${account.role})`] : ['Not signed in']));
  document.getElementById('header-sign-out').hidden = !account;
  for (const link of document.querySelectorAll('.views a')) {
    const view = viewOf(link.hash.slice(1));
    // Whoever is signed in has no use for signing up, but an invite's link still opens it.
    link.parentElement.hidden = !mayBe(link.hash === '#sign-up' ? 'guest' : view.dataset.for);
  }
  for (const part of document.querySelectorAll('[data-not-for="demo"]')) part.hidden = Boolean(account?.username.startsWith('demo-'));
  // For password managers, which would otherwise not know whose password it is.
  for (const owner of document.querySelectorAll('.owner')) owner.value = account?.username ?? '';
  if (start) open(location.hash.slice(1), false);
  else go(first());
}

export function showUnknownSession() {
  if (known) return;
  showSession(null);
  tellState('Session unknown');
}

function tellState(...words) {
  document.getElementById('session-state').replaceChildren(...words.flatMap((word) => {
    const part = document.createElement('span');
    part.textContent = word;
    return [part, ' '];
  }));
}

// go opens a view as a link to it would.
function go(name) {
  if (location.hash !== `#${name}`) history.pushState(null, '', `#${name}`);
  open(name, true);
}

// open shows a view, or the first one where there is none of that name for whoever is signed in. Focus moves to its heading
// so that a reader begins there; not when the page is opened, where the browser has its own place to begin.
function open(name, focus) {
  const wanted = viewOf(name);
  const view = wanted && mayBe(wanted.dataset.for) ? wanted : viewOf(first());
  const opened = view.hidden;
  for (const other of document.querySelectorAll('.view')) other.hidden = other !== view;
  for (const link of document.querySelectorAll('.views a')) {
    if (viewOf(link.hash.slice(1)) === view) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const heading = view.querySelector('h1');
  document.title = `${heading.textContent.replace(/\.$/, '')} · Weir`;
  if (focus) {
    heading.focus({ preventScroll: true });
    scrollTo({ top: 0, behavior: 'instant' });
  }
  if (opened) read(view);
}

function viewOf(name) {
  return /^[a-z-]+$/.test(name) ? document.getElementById(`view-${name}`) : null;
}

// read asks for the lists of a view that aren't there yet.
function read(view) {
  for (const form of view.querySelectorAll('form[data-opens]')) {
    if (!isPaused(form) && !form.closest('.action').querySelector('.result').firstChild) form.requestSubmit(form.querySelector('button'));
  }
}

// forget takes back what was told to the one whose session it was: answers, lists, and what was typed.
function forget() {
  for (const view of document.querySelectorAll('.view:is([data-for="member"], [data-for="admin"])')) {
    for (const panel of view.querySelectorAll('.answer')) clearAnswer(panel);
    for (const result of view.querySelectorAll('.result')) result.replaceChildren();
  }
  forgetPersonal();
}
