// Forms: sending one, holding it back while a limit refuses, and saying which field is wrong. Each for itself: what one form
// waits for stops no other.

import { announce, countDown, outdate, panelOf, showAnswer, showBusy } from './answers.js';
import { send } from './requests.js';
import { durationText } from './words.js';

// A limit that counts what is in a field refuses that alone: with something else in the field there is no wait.
const limitedFields = { 'failed-sign-ins': 'username' };

// prepareForms makes every form ask for its action. Unauthorized is called with every 401.
export function prepareForms(actions, unauthorized) {
  for (const input of document.querySelectorAll('.field :is(input, textarea)')) prepareField(input);
  for (const form of document.querySelectorAll('form[data-action]')) {
    const action = actions[form.dataset.action];
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      submit(form, action, event.submitter, unauthorized);
    });
    setPaused(form, false);
  }
}

async function submit(form, action, submitter, unauthorized) {
  if (isPaused(form)) {
    announce(form.querySelector('.wait').textContent || 'Still waiting for the answer.');
    return;
  }
  if (submitter?.dataset.off) {
    announce(submitter.dataset.off);
    return;
  }
  const label = (submitter ?? form.querySelector('button:not([type])')).textContent;
  const values = Object.fromEntries(new FormData(form, submitter));
  const missing = action.missing?.(values);
  if (missing) {
    announce(missing);
    return;
  }
  const request = action.request(values, form);
  const panel = panelOf(form);

  clearErrors(form);
  showWait(form, 'busy', '');
  setPaused(form, true);
  showBusy(panel, form.dataset.action);
  const asked = session;
  const answer = await send(request);
  setPaused(form, false);
  if (isPersonal(form) && asked !== session) return; // it is for somebody who has gone

  const sentence = tell(action, answer);
  if (answer.ok) action.follow?.(answer.body ?? {}, form, values);
  const shown = (answer.ok && action.shownIn) || panel;
  if (shown !== panel) panel.dataset.state = 'empty';
  showAnswer(shown === panel ? panel : document.querySelector(`${shown} .answer`), request, answer, sentence);
  showFieldError(form, answer.body);
  if (answer.waitSeconds) holdBack(form, label, answer, values);
  announce([sentence, form.querySelector('.wait').textContent].filter(Boolean).join(' '));
  if (answer.status === 401) unauthorized(request, answer, action);
}

function tell(action, { status, ok, body }) {
  if (status === 0) return 'No answer came. The request may or may not have arrived; check the connection before you try again.';
  if (ok) return action.tell(body ?? {});
  return body?.detail || body?.title || `The server answered with status ${status} and nothing that can be told in a sentence.`;
}

// holdBack keeps the form's buttons focusable: a button that vanishes from the keyboard mid-use loses the reader's place.
function holdBack(form, label, { waitSeconds, body }, values) {
  const refused = body?.['violated-policies'] ?? [];
  const field = refused.length === 1 ? limitedFields[refused[0]] : undefined;
  const input = field && form.elements.namedItem(field);
  const refusedIn = session;
  const isOther = () => (isPersonal(form) && refusedIn !== session) || (Boolean(input) && input.value !== values[field]);
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
    if (panel.dataset.action === form.dataset.action && panel.dataset.state === 'stopped') {
      outdate(panel, 'The wait is over: you can try again.');
    }
    announce(`${label}: works again now.`);
  });
}

// What somebody who is signed in asks for is theirs: their limits, and their answers.
let session = 0;

function isPersonal(form) {
  return form.closest('.view').matches('[data-for="member"], [data-for="admin"]');
}

// forgetPersonal takes back what was typed into the forms of whoever was signed in, and what those wait for.
export function forgetPersonal() {
  session++;
  for (const form of document.querySelectorAll('form[data-action]')) {
    if (!isPersonal(form)) continue;
    form.reset();
    clearErrors(form);
    showWait(form, '', '');
  }
}

export function isPaused(form) {
  return form.dataset.paused === 'true';
}

function setPaused(form, paused) {
  form.dataset.paused = paused;
  for (const button of buttonsOf(form)) button.ariaDisabled = paused || Boolean(button.dataset.off);
}

// setOff says why a button can't be used at the moment; '' means that it can.
export function setOff(button, reason) {
  button.dataset.off = reason;
  button.ariaDisabled = isPaused(button.form) || Boolean(reason);
}

function buttonsOf(form) {
  return [...form.elements].filter((element) => element.type === 'submit');
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
  input.dataset.describedby = input.getAttribute('aria-describedby') ?? '';
  input.addEventListener('input', () => setError(input, false));
  if (input.type === 'password') addReveal(input);
}

function addReveal(input) {
  const box = document.createElement('div');
  box.className = 'password';
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'quiet';
  button.textContent = 'Show';
  button.ariaLabel = `Show what is typed: ${input.labels[0].textContent}`;
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

function showFieldError(form, body) {
  const input = body?.field && form.elements.namedItem(body.field);
  if (!input?.matches?.('.field :is(input, textarea)')) return;
  setError(input, true);
  input.focus();
}

function clearErrors(form) {
  for (const input of form.querySelectorAll('[aria-invalid]')) setError(input, false);
}

// The field's own line is short, so that its room can be kept; the whole sentence is the answer's, and describes the field.
function setError(input, wrong) {
  const error = document.getElementById(`${input.id}-error`);
  error.textContent = wrong ? 'Not accepted: the answer says why.' : '';
  const describedby = [input.dataset.describedby, wrong && panelOf(input).querySelector('.sentence').id].filter(Boolean).join(' ');
  if (describedby) input.setAttribute('aria-describedby', describedby);
  else input.removeAttribute('aria-describedby');
  if (wrong) input.setAttribute('aria-invalid', 'true');
  else input.removeAttribute('aria-invalid');
}

export function fill(id, value) {
  const input = document.getElementById(id);
  input.value = value ?? '';
  input.dispatchEvent(new Event('input', { bubbles: true }));
}
