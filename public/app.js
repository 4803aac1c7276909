// The page: its forms ask for actions, and its views are for whom the server says is signed in.

import { actions } from './js/actions.js';
import { announce, prepareAnswers, showAnswer, showEdge } from './js/answers.js';
import { prepareForms } from './js/forms.js';
import { get, send } from './js/requests.js';
import { isSignedIn, isSessionKnown, showSession, showUnknownSession, startViews } from './js/views.js';

prepareAnswers();
prepareForms(actions, onUnauthorized);
startViews();

const current = await send(get('/api/sign-in'));
showEdge(current);
// Whoever signed in or out meanwhile has the newer answer.
if (!isSessionKnown()) {
  if (current.ok || current.status === 401) showSession(current.ok ? current.body : null);
  else showUnknownSession();
}

// The page learns here that its session has ended: from any 401, unless that may be about a password.
async function onUnauthorized(request, answer, action) {
  if (!isSignedIn()) return;
  if (action.guesses && (await send(get('/api/sign-in'))).status !== 401) return;
  const sentence = 'Your session has ended. Please sign in again.';
  showSession(null);
  showAnswer(document.querySelector('#sign-in-panel .answer'), request, answer, sentence);
  announce(sentence);
}
