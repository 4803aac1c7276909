// Every action is a request, the sentence its success is told in, and what follows from it on the page. Where shownIn is
// given, the answer of a success is shown in that panel, because the view of its own is left. One that guesses has a password, or
// the token of a link, so that 401 may mean that this is wrong.

import { fill, setOff } from './forms.js';
import { get, post } from './requests.js';
import { showAlerts, showAudit, showEntries, showPickable, showRefusals, showResults, showRows } from './results.js';
import { countText, timeOf } from './words.js';
import { showSession } from './views.js';

const pageSize = 10;

// pages is the action of a list that is read page by page: where it is, how many things it has in words, what it says when
// it has none, and show to show a page.
function pages(path, query, { count, none, show }) {
  return {
    request: ({ page }, form) => get(path, {
      ...query, limit: pageSize, ...(page === 'older' && { cursor: form.dataset.next }),
    }),
    tell: ({ items }) => (items.length ? `${count(items.length)}, newest first.` : none),
    follow: (page, form) => {
      form.dataset.next = page.next ?? '';
      setOff(form.querySelector('[value="older"]'), page.next ? '' : 'There is nothing older.');
      show(page);
    },
  };
}

const entries = { count: (n) => countText(n, 'entry', 'entries'), none: 'There are no entries.' };

export const actions = {
  'borrow-code': {
    request: () => post('/api/codes', {}),
    tell: ({ code, expiresAt }) => `Code ${code} is yours until ${timeOf(expiresAt)}. It is filled in below.`,
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
    request: ({ code, username, password, email }) => post('/api/sign-up', { code, username, password, ...(email && { email }) }),
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
    shownIn: '#session',
    follow: (account) => {
      fill('sign-in-password', '');
      showSession(account);
    },
  },
  'demo-sign-in': {
    request: ({ role }) => post('/api/demo-sign-in', { role }),
    tell: ({ username, role }) => `You are signed in as ${username} (${role}).`,
    shownIn: '#session',
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
    shownIn: '#sign-in-panel',
    follow: () => showSession(null),
  },
  'sign-out-everywhere': {
    request: () => ({ method: 'DELETE', path: '/api/sign-in?everywhere=1' }),
    tell: () => 'You are signed out everywhere.',
    shownIn: '#sign-in-panel',
    follow: () => showSession(null),
  },
  'change-password': {
    request: ({ currentPassword, newPassword }) => ({ method: 'PATCH', path: '/api/sign-in', body: { currentPassword, newPassword } }),
    tell: () => 'The new password is in force. You are signed in here alone.',
    guesses: true,
    follow: () => {
      fill('change-password-current', '');
      fill('change-password-new', '');
    },
  },
  'ask-for-reset': {
    request: ({ username }) => ({ method: 'PUT', path: '/api/sign-in', body: { username } }),
    tell: () => 'If this account has an e-mail address, a link is on its way there, unless it has got three within an hour.',
  },
  'reset-password': {
    request: ({ token, newPassword }) => ({ method: 'PATCH', path: '/api/sign-in', body: { token, newPassword } }),
    tell: () => 'The new password is in force, and every session is ended. You can sign in with it now.',
    guesses: true,
    follow: () => {
      fill('reset-password-token', '');
      fill('reset-password-new', '');
    },
  },
  'delete-account': {
    request: ({ password }) => ({ method: 'DELETE', path: '/api/sign-up', body: { password } }),
    tell: () => 'The account is deleted, with all that belonged to it.',
    guesses: true,
    shownIn: '#sign-in-panel',
    follow: () => {
      fill('sign-in-username', '');
      showSession(null);
    },
  },
  'check-name': {
    request: ({ name }) => get('/api/usernames', { name }),
    tell: ({ name, free }) => `The name ${name} is ${free ? 'free' : 'taken'}.`,
  },
  invite: {
    request: ({ email }) => post('/api/invites', { email }),
    tell: () => 'The invite is on its way.',
    follow: () => fill('invite-email', ''),
  },
  'add-entry': {
    request: ({ model, prompt, response, tokens }) => post('/api/ai-log', { model, prompt, response, tokens: Number(tokens) }),
    tell: ({ id, createdAt }) => `Entry ${id} is added, at ${timeOf(createdAt)}.`,
    follow: () => {
      fill('add-entry-prompt', '');
      fill('add-entry-response', '');
      // It would be missing in the list below.
      document.querySelector('[data-action="read-entries"]').requestSubmit();
    },
  },
  'read-entries': pages('/api/ai-log', {}, { ...entries, show: showEntries }),
  'sandbox-sql': {
    request: ({ sql }) => post('/api/sandbox-sql', { sql }),
    tell: ({ columns, rows, truncated }) => {
      if (!columns.length) return 'Done. It gives no rows.';
      return `${countText(rows.length, 'row')}${truncated ? ', and more that are left out' : ''}.`;
    },
    follow: showRows,
  },
  'read-all-entries': pages('/api/ai-log', { all: '1' }, { ...entries, show: showPickable }),
  'score-entry': {
    missing: ({ entry }) => (entry ? '' : 'Please pick an entry first.'),
    request: ({ entry, score, note }) => post('/api/evaluations', { entry: Number(entry), score: Number(score), ...(note && { note }) }),
    tell: () => 'The score is in. A second one of the same entry would replace it.',
    follow: () => {
      fill('score-entry-note', '');
      document.querySelector('[data-action="read-results"]').requestSubmit();
    },
  },
  'read-results': {
    request: () => get('/api/evaluations'),
    tell: ({ items, truncated }) => `${items.length ? countText(items.length, 'model') : 'Nothing is scored yet'}${truncated ? ', and more that are left out' : ''}.`,
    follow: showResults,
  },
  'read-refusals': {
    request: () => get('/api/limits', { view: 'refusals' }),
    tell: ({ policies }) => `${countText(total(policies), 'first refusal')} in 24 hours.`,
    follow: showRefusals,
  },
  'read-audit': pages('/api/limits', { view: 'audit' }, {
    count: (n) => countText(n, 'line'), none: 'Nothing was refused yet.', show: showAudit,
  }),
  'read-alerts': pages('/api/limits', { view: 'alerts' }, {
    count: (n) => countText(n, 'alert'), none: 'There are no alerts.', show: showAlerts,
  }),
};

function total(policies) {
  return policies.flatMap(({ refusals }) => refusals).reduce((sum, n) => sum + n, 0);
}
