// Drives the page in headless Chromium.
//
//   node page.mjs ORIGIN CHROMIUM [SCREENSHOTS]
//
// ORIGIN serves the page with the policies of scripts/dev/page_test.go, CHROMIUM is the browser's program. Each scenario is a
// line {"name", "error"?} on standard output, and the last line is {"ended": how many}. With SCREENSHOTS, a folder, pictures are taken into it and nothing is tested.
//
// Nothing here sleeps: what is waited for is the page itself. Each scenario has an address of its own, and so limits of its own.

import { createRequire } from 'node:module';
import { join } from 'node:path';

import { chromium } from 'playwright-core';

const [origin, executablePath, screenshots] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const password = 'correct horse battery';

// Requests that are refused are errors to the browser's console. Those are what is tested, and are told apart by their text.
const refusedRequest = /^Failed to load resource: the server responded with a status of 4\d\d /;

// Faults are looked for in every page of every scenario: errors on the console, requests elsewhere, what the policy of the
// page's content forbids, and shifts of the layout that nobody's press explains.
class Visit {
  static addresses = 0;

  static async start(browser, options = {}) {
    const { axe: withAxe, ...context } = options;
    const visit = new Visit();
    visit.faults = [];
    visit.context = await browser.newContext({
      viewport: { width: 1280, height: 800 },
      reducedMotion: 'reduce',
      ...context,
      extraHTTPHeaders: { 'X-Vercel-Forwarded-For': `192.0.2.${++Visit.addresses}` },
    });
    visit.context.setDefaultTimeout(30_000);
    await visit.context.addInitScript(() => {
      globalThis.shifts = [];
      globalThis.violations = [];
      // A press explains what its answer moves, however long a busy machine takes for that: the browser's half second is
      // too short there. Its span ends a second after the last answer of the requests that it caused.
      const spans = [];
      let waiting = 0;
      let ending;
      const endSoon = () => {
        clearTimeout(ending);
        ending = setTimeout(() => {
          if (waiting) return; // its answer ends it
          for (const span of spans) span.end = Math.min(span.end, performance.now());
        }, 1000);
      };
      for (const kind of ['pointerdown', 'keydown']) {
        addEventListener(kind, (event) => {
          if (!event.isTrusted) return;
          spans.push({ start: event.timeStamp, end: Infinity });
          endSoon();
        }, true);
      }
      const send = globalThis.fetch;
      globalThis.fetch = async (...request) => {
        const pressed = spans.at(-1)?.end === Infinity;
        if (!pressed) return send(...request);
        waiting++;
        try {
          return await send(...request);
        } finally {
          waiting--;
          endSoon();
        }
      };
      const pressed = ({ startTime }) => spans.some(({ start, end }) => start <= startTime && startTime <= end);
      const keep = (list) => {
        for (const shift of list) {
          if (shift.hadRecentInput || pressed(shift)) continue;
          globalThis.shifts.push(`${shift.value} by ${shift.sources.map(({ node }) => node?.id || node?.className || node?.nodeName)}`);
        }
      };
      globalThis.shiftsOf = new PerformanceObserver((list) => keep(list.getEntries()));
      globalThis.shiftsOf.observe({ type: 'layout-shift', buffered: true });
      globalThis.takeShifts = () => {
        keep(globalThis.shiftsOf.takeRecords());
        return globalThis.shifts;
      };
      addEventListener('securitypolicyviolation', (event) => globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
    });
    if (withAxe) await visit.context.addInitScript({ path: axe });
    visit.page = await visit.context.newPage();
    visit.page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type()) && !refusedRequest.test(message.text())) visit.faults.push(`console: ${message.text()}`);
    });
    visit.page.on('pageerror', (error) => visit.faults.push(`error: ${error.message}`));
    visit.page.on('request', (request) => {
      if (new URL(request.url()).origin !== origin) visit.faults.push(`request to ${request.url()}`);
    });
    return visit;
  }

  async open(hash = '') {
    await this.page.goto(`${origin}/${hash}`);
    await this.page.locator('.view:not([hidden])').waitFor();
  }

  // check gathers the faults up to now.
  async check() {
    const { shifts, violations } = await this.page.evaluate(() => ({ shifts: globalThis.takeShifts(), violations: globalThis.violations }));
    this.faults.push(...shifts.map((shift) => `layout shift of ${shift}`), ...violations.map((violation) => `policy violation: ${violation}`));
    return this.faults;
  }

  async end() {
    const faults = await this.check();
    await this.context.close();
    equal(faults, [], 'faults of the page');
  }

  button(panel, name) {
    return this.page.locator(panel).getByRole('button', { name, exact: true });
  }

  // answered waits for the answer in a panel that has one of the states.
  async answered(panel, ...states) {
    const answer = this.page.locator(`${panel} .answer`);
    await this.page.waitForFunction(([at, wanted]) => wanted.includes(document.querySelector(at)?.dataset.state), [`${panel} .answer`, states]);
    return (await answer.locator('.sentence').textContent()).trim();
  }

  // ask presses a button and gives the status of the answer in its panel.
  async ask(panel, name) {
    await this.button(panel, name).click();
    await this.answered(panel, 'ok', 'stopped');
    return (await this.page.locator(`${panel} .status`).textContent()).trim();
  }

  async view(name) {
    await this.page.getByRole('navigation').getByRole('link', { name, exact: true }).click();
  }

  async isOpen(view) {
    await this.page.locator(`#view-${view}:not([hidden])`).waitFor();
  }

  async demo(role) {
    await this.button('#demo-sign-in', `As ${role}`).click();
    await this.isOpen('account');
  }

  // signUp makes an account by the page's own forms.
  async signUp(name) {
    await this.view('Sign up');
    equal(await this.ask('#borrow-code', 'Borrow a code'), 'Status 201', 'borrowing a code');
    await this.page.locator('#sign-up-username').fill(name);
    await this.page.locator('#sign-up-password').fill(password);
    equal(await this.ask('#sign-up-panel', 'Sign up'), 'Status 201', 'signing up');
  }

  async signIn(name, secret = password) {
    await this.view('Sign in');
    await this.page.locator('#sign-in-username').fill(name);
    await this.page.locator('#sign-in-password').fill(secret);
    await this.button('#sign-in-panel', 'Sign in').click();
    await this.isOpen('account');
  }

  // refused presses a button until a limit refuses, and from then on keeps what the form says of its wait.
  async refused(panel, name) {
    await this.page.evaluate((at) => {
      const line = document.querySelector(`${at} .wait`);
      globalThis.waits = [];
      globalThis.atRefusal = null;
      new MutationObserver(() => {
        if (!line.textContent) return;
        globalThis.waits.push(line.textContent);
        // What no other form has to wait for is looked at in the very moment.
        globalThis.atRefusal ??= [...document.querySelectorAll('form[data-paused="true"]')].map((form) => form.dataset.action);
      }).observe(line, { childList: true });
    }, panel);
    for (let i = 0; i < 40; i++) {
      const status = await this.ask(panel, name);
      if (status === 'Status 429') return;
    }
    throw new Error('no attempt was refused');
  }

  // waited waits until the form says that it works again, and checks that it counted down to that.
  async waited(panel) {
    await this.page.locator(`${panel} .wait[data-state="over"]`).waitFor();
    const waits = await this.page.evaluate(() => globalThis.waits);
    const seconds = waits.map((text) => Number(/^Works again in (\d+) s/.exec(text)?.[1] ?? (text === 'Works again now.' ? 0 : NaN)));
    const falling = seconds.every((n, i) => i === 0 || n < seconds[i - 1]);
    if (seconds.length < Math.min(seconds[0], 2) + 1 || !falling || seconds.at(-1) !== 0) throw new Error(`the countdown was ${JSON.stringify(waits)}`);
  }

  // violations are what axe finds on what is shown.
  async violations() {
    return this.page.evaluate(async () => {
      const { violations } = await globalThis.axe.run(document);
      return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target, failureSummary }) => `${target} (${failureSummary})`).join('; ')}`);
    });
  }
}

function equal(got, want, what) {
  const [a, b] = [JSON.stringify(got, null, 1), JSON.stringify(want, null, 1)];
  if (a !== b) throw new Error(`${what}: got ${a}, want ${b}`);
}

const scenarios = {
  async 'the judge finds each planted fault'(browser) {
    const visit = await Visit.start(browser, { axe: true });
    await visit.open();
    equal([await visit.check(), await visit.violations()], [[], []], 'faults before any is planted');
    await visit.page.evaluate(async (elsewhere) => {
      console.error('planted');
      await fetch(elsewhere).catch(() => {});
      document.querySelector('h1').setAttribute('style', 'color: red');
      document.querySelector('#sign-in-username').labels[0].remove();
    }, 'http://127.0.0.1:9/');
    // A press would explain the shift; there was none.
    await visit.page.evaluate(() => new Promise((done) => {
      document.querySelector('main').prepend(Object.assign(document.createElement('p'), { textContent: 'planted' }));
      requestAnimationFrame(() => requestAnimationFrame(done));
    }));
    const faults = (await visit.check()).join('\n');
    for (const found of [/console: planted/, /policy violation: connect-src/, /policy violation: style-src-attr/, /layout shift/]) {
      if (!found.test(faults)) throw new Error(`${found} is not among the faults: ${faults}`);
    }
    const violations = await visit.violations();
    if (!violations.some((violation) => violation.startsWith('label: '))) throw new Error(`a missing label is not found: ${violations}`);
    await visit.context.close();

    // The policy stops requests elsewhere before they are sent, so that without it one is seen.
    const open = await Visit.start(browser, { bypassCSP: true });
    await open.open();
    await open.page.evaluate(() => fetch('http://127.0.0.1:9/').catch(() => {}));
    if (!open.faults.some((fault) => fault.startsWith('request to http://127.0.0.1:9'))) throw new Error(`a request elsewhere is not found: ${open.faults}`);
    await open.context.close();
  },

  async 'somebody signs up, is refused, waits as long as told, and succeeds'(browser) {
    const visit = await Visit.start(browser);
    await visit.open();
    await visit.view('Sign up');
    equal(await visit.ask('#borrow-code', 'Borrow a code'), 'Status 201', 'borrowing a code');
    await visit.page.locator('#sign-up-username').fill('page-anna');
    await visit.page.locator('#sign-up-password').fill('short');
    await visit.refused('#sign-up-panel', 'Sign up');
    equal(await visit.page.evaluate(() => globalThis.atRefusal), ['sign-up'], 'forms that wait');
    equal(await visit.button('#sign-up-panel', 'Sign up').getAttribute('aria-disabled'), 'true', 'the button while its form waits');
    equal(await visit.ask('#borrow-code', 'Borrow a code'), 'Status 201', 'another form meanwhile');
    equal(await visit.page.locator('#sign-up-panel [data-limit="sign-up"] meter').evaluate((meter) => [meter.value, meter.max]), [0, 3], 'the meter');
    await visit.page.locator('#sign-up-password').fill(password);
    await visit.waited('#sign-up-panel');
    equal(await visit.ask('#sign-up-panel', 'Sign up'), 'Status 201', 'signing up after the wait');
    await visit.signIn('page-anna');
    equal(await visit.answered('#session', 'ok'), 'You are signed in as page-anna (member).', 'the answer');
    await visit.end();
  },

  async 'with a wrong password other names and forms go on'(browser) {
    const visit = await Visit.start(browser, { viewport: { width: 360, height: 780 } });
    await visit.open();
    await visit.page.locator('#sign-in-username').fill('page-anna');
    await visit.page.locator('#sign-in-password').fill('wrong but long enough');
    await visit.refused('#sign-in-panel', 'Sign in');
    const sentence = await visit.answered('#sign-in-panel', 'stopped', 'past');
    if (!sentence.endsWith('.')) throw new Error(`the refusal says ${sentence}`);
    equal(await visit.page.evaluate(() => globalThis.atRefusal), ['sign-in'], 'forms that wait');
    await visit.waited('#sign-in-panel');
    await visit.page.locator('#sign-in-password').fill(password);
    await visit.button('#sign-in-panel', 'Sign in').click();
    await visit.isOpen('account');
    await visit.end();
  },

  async 'the keyboard alone signs in and out, and focus is seen and follows'(browser) {
    const visit = await Visit.start(browser);
    await visit.open();
    const { page } = visit;
    const focused = () => page.evaluate(() => {
      const { activeElement: e } = document;
      const style = getComputedStyle(e);
      return { what: e.id || e.textContent.trim(), seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 };
    });
    const stops = [];
    const tabTo = async (what) => {
      for (let i = 0; i < 40; i++) {
        await page.keyboard.press('Tab');
        const at = await focused();
        stops.push(at);
        if (at.what === what) return;
      }
      throw new Error(`Tab never reached ${what}: ${JSON.stringify(stops)}`);
    };
    await tabTo('Skip to the content');
    await page.keyboard.press('Enter');
    await tabTo('sign-in-username');
    await page.keyboard.type('page-anna');
    await tabTo('sign-in-password');
    await page.keyboard.type(password);
    await page.keyboard.press('Enter');
    await visit.isOpen('account');
    equal((await focused()).what, 'view-account-title', 'focus after signing in');
    await page.keyboard.press('Shift+Tab');
    await tabTo('Who am I?');
    await page.keyboard.press('Space');
    await page.waitForFunction(() => document.querySelector('#announcer').textContent.startsWith('You are page-anna'));
    equal((await focused()).what, 'Who am I?', 'focus after an answer');
    await tabTo('Sign out here');
    await page.keyboard.press('Enter');
    await visit.isOpen('sign-in');
    equal((await focused()).what, 'view-sign-in-title', 'focus after signing out');
    equal(stops.filter(({ seen }) => !seen), [], 'stops at which no focus is seen');
    // A field that is refused gets the focus, and the sentence as its description.
    await page.locator('#sign-in-username').focus();
    await page.keyboard.type('page-nobody');
    await visit.view('Look up');
    await page.locator('#check-name-name').fill('?');
    await page.keyboard.press('Enter');
    await visit.answered('#check-name', 'stopped');
    const field = page.locator('#check-name-name');
    await page.waitForFunction(() => document.activeElement.id === 'check-name-name');
    equal(await field.getAttribute('aria-invalid'), 'true', 'the field');
    const described = await field.evaluate((input) => input.getAttribute('aria-describedby').split(' ').map((id) => document.getElementById(id)?.textContent).join(' '));
    if (!described.includes('A name has 3 to 32 characters')) throw new Error(`the field is described by ${described}`);
    await visit.end();
  },

  async 'a member logs entries, pages through them, mails an invite, and sees nothing that is for admins'(browser) {
    const visit = await Visit.start(browser);
    const { page } = visit;
    await visit.open();
    equal(await links(visit), ['Sign in', 'Sign up', 'Look up'], 'links of a guest');
    await visit.demo('a member');
    equal(await links(visit), ['Account', 'AI log', 'Invites', 'Look up'], 'links of a member');
    await visit.open('#sandbox'); // is for admins
    await visit.isOpen('account');
    equal(await page.locator('[data-for="admin"]:visible').count(), 0, 'views for admins');
    await visit.view('AI log');
    for (let i = 1; i <= 11; i++) {
      await page.locator('#add-entry-model').fill(i % 2 ? 'model-one' : 'model-two');
      await page.locator('#add-entry-prompt').fill(`<b>question ${i}</b>`);
      await page.locator('#add-entry-tokens').fill(String(i * 7));
      equal(await visit.ask('#add-entry', 'Add the entry'), 'Status 201', 'adding an entry');
      await visit.page.waitForFunction((wanted) => document.querySelector('#read-entries .entries summary')?.textContent === wanted, `<b>question ${i}</b>`);
    }
    await visit.answered('#read-entries', 'ok');
    equal(await page.locator('#read-entries .entries > li').count(), 10, 'entries on the first page');
    await visit.button('#read-entries', 'Older').click();
    await page.waitForFunction(() => document.querySelector('#read-entries .entries summary')?.textContent === '<b>question 1</b>');
    equal(await visit.button('#read-entries', 'Older').getAttribute('aria-disabled'), 'true', 'the button for older ones at the end');
    await visit.view('Invites');
    await page.locator('#invite-email').fill('somebody@example.org');
    equal(await visit.ask('#invite', 'Mail the invite'), 'Status 202', 'mailing an invite');
    // Every attempt counts, also one without an address, which the browser itself would not send.
    await page.evaluate(() => document.querySelector('#invite-email').removeAttribute('required'));
    await visit.refused('#invite', 'Mail the invite');
    // Whoever signs in next on this page sees nothing of it.
    await page.getByRole('banner').getByRole('button', { name: 'Sign out' }).click();
    await visit.isOpen('sign-in');
    equal(await page.locator('#read-entries .entries').count(), 0, 'lists after signing out');
    equal(await links(visit), ['Sign in', 'Sign up', 'Look up'], 'links after signing out');
    await visit.signIn('page-anna');
    await visit.view('Invites');
    await page.locator('#invite-email').fill('somebody@example.org');
    equal(await visit.ask('#invite', 'Mail the invite'), 'Status 202', 'an invite by the next member, who waits for nothing');
    await visit.end();
  },

  async 'a member changes the password, signs out everywhere, and deletes the account'(browser) {
    const visit = await Visit.start(browser);
    const { page } = visit;
    await visit.open();
    await visit.signUp('page-berta');
    await visit.signIn('page-berta');
    await page.locator('#change-password-current').fill('not the one it is');
    await page.locator('#change-password-new').fill('another long password');
    equal(await visit.ask('#change-password', 'Change the password'), 'Status 401', 'a wrong current password');
    await page.locator('#change-password-current').fill(password);
    equal(await visit.ask('#change-password', 'Change the password'), 'Status 204', 'the right one');
    await visit.button('#session', 'Sign out everywhere').click();
    await visit.isOpen('sign-in');
    equal(await visit.answered('#sign-in-panel', 'ok'), 'You are signed out everywhere.', 'the answer');
    await visit.signIn('page-berta', 'another long password');
    // The session ends elsewhere; the page learns it from the next answer.
    await page.evaluate(() => fetch('/api/sign-in', { method: 'DELETE' }));
    await visit.view('AI log');
    await visit.isOpen('sign-in');
    equal(await visit.answered('#sign-in-panel', 'stopped'), 'Your session has ended. Please sign in again.', 'the answer');
    await visit.signIn('page-berta', 'another long password');
    await page.locator('#delete-account-password').fill('another long password');
    await page.locator('#delete-account-sure').check();
    await visit.button('#delete-account', 'Delete the account').click();
    await visit.isOpen('sign-in');
    await visit.view('Look up');
    await page.locator('#check-name-name').fill('page-berta');
    equal(await visit.ask('#check-name', 'Check the name'), 'Status 200', 'checking the name');
    equal(await visit.answered('#check-name', 'ok'), 'The name page-berta is free.', 'the name afterwards');
    await visit.end();
  },

  async 'an invite link fills the code in and leaves no trace of it in the address'(browser) {
    const visit = await Visit.start(browser);
    await visit.open('#code=abcd-efgh');
    await visit.isOpen('sign-up');
    equal(await visit.page.locator('#sign-up-code').inputValue(), 'abcd-efgh', 'the code');
    equal(new URL(visit.page.url()).hash, '#sign-up', 'the address');
    await visit.end();
  },

  async 'a forgotten password is asked for by name and replaced by a link'(browser) {
    const visit = await Visit.start(browser);
    const { page } = visit;
    await visit.open();
    await page.getByRole('link', { name: 'Forgot your password?' }).press('Enter');
    await visit.isOpen('forgot');
    equal(await page.evaluate(() => document.activeElement.id), 'view-forgot-title', 'where a reader begins');
    const answers = [];
    for (const name of ['page-forgetful', 'page-nobody']) {
      await page.locator('#ask-for-reset-username').fill(name);
      equal(await visit.ask('#ask-for-reset', 'Mail me a link'), 'Status 202', `asking for ${name}`);
      answers.push(await visit.answered('#ask-for-reset', 'ok'));
    }
    equal(answers[0], answers[1], 'the answers to a name with an account and to one without');

    // The link is behind the #, and leaves no trace in the address. The one that was just mailed took its place.
    await page.goto(`${origin}/#reset=${'R'.repeat(43)}`);
    await page.waitForFunction(() => location.hash === '#reset');
    equal(await page.locator('#reset-password-token').inputValue(), 'R'.repeat(43), 'the token');
    await page.locator('#reset-password-new').fill('another long password');
    equal(await visit.ask('#reset-password', 'Set the new password'), 'Status 401', 'a link that a newer one ended');
    await visit.open(`#reset=${'F'.repeat(43)}`);
    await page.locator('#reset-password-new').fill('password1234');
    equal(await visit.ask('#reset-password', 'Set the new password'), 'Status 422', 'a password that everybody tries');
    equal(await page.locator('#reset-password-new').getAttribute('aria-invalid'), 'true', 'the field');
    await page.locator('#reset-password-new').fill('another long password');
    equal(await visit.ask('#reset-password', 'Set the new password'), 'Status 204', 'a good link');
    equal(await page.locator('#reset-password-token').inputValue(), '', 'the token afterwards');
    await visit.signIn('page-reminded', 'another long password');

    // Whoever is signed in stays so when a link is not good.
    await visit.open(`#reset=${'F'.repeat(43)}`);
    await page.locator('#reset-password-new').fill('another long password');
    equal(await visit.ask('#reset-password', 'Set the new password'), 'Status 401', 'a link that was used');
    equal((await page.locator('#session-state').textContent()).trim(), 'page-reminded (member)', 'who is signed in');
    await visit.end();
  },

  async 'an admin runs SQL, scores entries, and sees refusals, audit and alerts'(browser) {
    const visit = await Visit.start(browser);
    const { page } = visit;
    await visit.open();
    await visit.demo('an admin');
    equal(await links(visit), ['Account', 'AI log', 'Invites', 'Look up', 'Sandbox', 'Evaluations', 'Operator'], 'links of an admin');
    equal(await page.locator('[data-not-for="demo"]:visible').count(), 0, 'what a demo account may not do');

    await visit.view('Sandbox');
    await page.locator('#sandbox-sql-sql').fill("SELECT id, name, NULL AS empty FROM products WHERE id <= 2 ORDER BY id");
    equal(await visit.ask('#sandbox-sql', 'Run'), 'Status 200', 'a statement');
    equal(await page.locator('#sandbox-sql th').allTextContents(), ['id', 'name', 'empty'], 'columns');
    equal(await page.locator('#sandbox-sql tbody tr').count(), 2, 'rows');
    equal(await page.locator('#sandbox-sql td.null').first().textContent(), 'NULL', 'what is null');
    await page.locator('#sandbox-sql-sql').fill('WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n');
    equal(await visit.ask('#sandbox-sql', 'Run'), 'Status 200', 'a long answer');
    await page.locator('#sandbox-sql .notice').waitFor();
    await page.locator('#sandbox-sql-sql').fill('ATTACH \'x\' AS y');
    equal(await visit.ask('#sandbox-sql', 'Run'), 'Status 422', 'what is not allowed');

    await visit.view('Evaluations');
    await visit.answered('#read-all-entries', 'ok');
    for (const [i, score] of [5, 4, 2].entries()) {
      await page.locator('#read-all-entries [type="radio"]').nth(i).check();
      await page.locator('#score-form').getByLabel(String(score), { exact: true }).check();
      equal(await visit.ask('#score-entry', 'Score the entry'), 'Status 201', 'a score');
      await page.waitForFunction((n) => [...document.querySelectorAll('#read-results tbody tr')]
        .reduce((sum, row) => sum + Number(row.cells[1].textContent), 0) === n, i + 1);
    }
    // The newest entry is the eleventh, of model-one; so is the third newest.
    equal(await page.locator('#read-results tbody tr').evaluateAll((rows) => rows.map((row) => [
      row.cells[0].textContent, row.cells[1].textContent, row.cells[2].textContent, row.querySelectorAll('svg rect').length,
    ])), [['model-one', '2', '3.50', 2], ['model-two', '1', '4.00', 1]], 'results');

    await visit.view('Operator');
    for (const panel of ['#read-refusals', '#read-audit', '#read-alerts']) await visit.answered(panel, 'ok');
    const plotted = await page.locator('#read-refusals .plot > li').evaluateAll((rows) => rows.map((row) => [
      row.querySelector('.limit-name').textContent, row.querySelectorAll('svg rect').length > 0, row.querySelector('svg').ariaLabel.length > 0,
    ]));
    // What page_test.go put there is hours old: three of borrow-code, in two of them.
    equal(await page.locator('#read-refusals .plot > li', { hasText: 'borrow-code' }).evaluate((row) => [
      row.querySelector('.limit-left').textContent, row.querySelectorAll('svg rect').length,
    ]), ['3 refusals', 2], 'the plot of earlier refusals');
    equal(await page.locator('#read-alerts tbody tr').evaluateAll((rows) => rows.map((row) => [row.cells[1].textContent, row.cells[2].textContent])),
      [['failed-sign-ins', 'repeated refusals, 3 windows']], 'alerts');
    for (const name of ['sign-in', 'sign-up']) {
      if (!plotted.some((row) => JSON.stringify(row) === JSON.stringify([name, true, true]))) throw new Error(`${name} is not plotted: ${JSON.stringify(plotted)}`);
    }
    await page.locator('#read-refusals .result summary').click();
    equal(await page.locator('#read-refusals tbody tr').count() >= plotted.length, true, 'rows of the table beside the plot');
    const audited = await page.locator('#read-audit tbody tr').evaluateAll((rows) => rows.map((row) => row.cells[1].textContent));
    if (!audited.includes('sign-up')) throw new Error(`the audit shows ${audited}`);

    // An answer that comes when its admin has gone is shown to nobody.
    let go;
    const gone = new Promise((resolve) => { go = resolve; });
    await page.route('**/api/sandbox-sql', async (route) => {
      const response = await route.fetch();
      await gone;
      await route.fulfill({ response });
    });
    await visit.view('Sandbox');
    await visit.button('#sandbox-sql', 'Run').click();
    await page.getByRole('banner').getByRole('button', { name: 'Sign out' }).click();
    await visit.isOpen('sign-in');
    go();
    await page.locator('#sandbox-sql form[data-paused="false"]').waitFor({ state: 'attached' });
    equal(await page.locator('#sandbox-sql .answer').getAttribute('data-state'), 'empty', 'the panel of the late answer');
    await visit.end();
  },

  async 'axe finds nothing in any state, light or dark, and nothing is wider than a narrow page'(browser) {
    for (const colorScheme of ['light', 'dark']) {
      const visit = await Visit.start(browser, { axe: true, colorScheme, viewport: { width: 360, height: 780 } });
      const found = async (state) => {
        equal(await visit.violations(), [], `violations, ${state}, ${colorScheme}`);
        const width = await visit.page.evaluate(() => document.documentElement.scrollWidth);
        equal(width <= 360, true, `the page is ${width} wide, ${state}`);
      };
      await visit.open();
      await found('signed out');
      await visit.page.locator('#sign-in-username').fill('page-carla');
      await visit.page.locator('#sign-in-password').fill('wrong');
      await visit.refused('#sign-in-panel', 'Sign in');
      await found('refused');
      for (const view of ['Sign up', 'Look up']) {
        await visit.view(view);
        await found(view);
      }
      await visit.page.locator('#check-name-name').fill('?');
      equal(await visit.ask('#check-name', 'Check the name'), 'Status 422', 'an impossible name');
      await found('a field refused');
      await visit.view('Sign in');
      await visit.page.getByRole('link', { name: 'Forgot your password?' }).click();
      await visit.isOpen('forgot');
      await found('a forgotten password');
      await visit.page.getByRole('link', { name: 'My mail has a token' }).click();
      await visit.isOpen('reset');
      await found('a new password');
      await visit.view('Sign in');
      await visit.demo('a member');
      for (const view of ['AI log', 'Invites']) {
        await visit.view(view);
        await found(`member, ${view}`);
      }
      await visit.page.getByRole('banner').getByRole('button', { name: 'Sign out' }).click();
      await visit.isOpen('sign-in');
      await visit.demo('an admin');
      await found('admin');
      await visit.view('Sandbox');
      equal(await visit.ask('#sandbox-sql', 'Run'), 'Status 200', 'a statement');
      await found('admin, Sandbox');
      await visit.view('Evaluations');
      await visit.answered('#read-results', 'ok');
      await found('admin, Evaluations');
      await visit.view('Operator');
      for (const panel of ['#read-refusals', '#read-audit', '#read-alerts']) await visit.answered(panel, 'ok');
      await found('admin, Operator');
      await visit.end();
    }
  },

  async 'nothing shifts when the page is opened again by somebody who is signed in'(browser) {
    for (const width of [360, 1280]) {
      const visit = await Visit.start(browser, { viewport: { width, height: 780 } });
      await visit.open();
      await visit.demo('an admin');
      await visit.page.reload();
      await visit.isOpen('account');
      await visit.open('#operator');
      await visit.answered('#read-alerts', 'ok');
      await visit.end();
    }
  },

  async 'the RateLimit fields are read by the grammar of structured fields'(browser) {
    const visit = await Visit.start(browser);
    await visit.open();
    const read = (policy, state) => visit.page.evaluate(async ([p, s]) => {
      const { limitsOf } = await import('/js/requests.js');
      return limitsOf(new Headers({ 'RateLimit-Policy': p, RateLimit: s })).map(({ name, quota, windowSeconds, remaining, resetSeconds }) => [name, quota, windowSeconds, remaining, resetSeconds]);
    }, [policy, state]);
    equal(await read('"a";q=10;w=60, "b";q=1000;w=60', '"a";r=3;t=20, "b";r=990;t=20'), [['a', 10, 60, 3, 20], ['b', 1000, 60, 990, 20]], 'two limits');
    equal(await read('"a\\"b";w=60;q=1;x="q=7, \\"c\\""', '"a\\"b";r=0;t=1'), [['a"b', 1, 60, 0, 1]], 'quotes in a name and a parameter');
    equal(await read('"a";q=10;w=60', '"b";r=3;t=20'), [], 'a policy without a state');
    for (const broken of ['"a";q=10;w=60, "b;q=1', '"a;q=10', 'a;q=10;w=60', '"a";q=10;w=60,', '"a";q=10 "b";q=1']) equal(await read(broken, '"a";r=3;t=20'), [], broken);
    await visit.end();
  },
};

function links(visit) {
  return visit.page.getByRole('navigation').getByRole('link').allTextContents();
}

// takeScreenshots makes the pictures of docs/: both widths in both schemes, each of something else.
async function takeScreenshots(browser) {
  const take = async (width, height, colorScheme, prepare) => {
    const visit = await Visit.start(browser, { colorScheme, viewport: { width, height } });
    await visit.open();
    const top = await prepare(visit);
    await visit.page.evaluate((at) => {
      document.activeElement.blur();
      if (at) document.querySelector(at).scrollIntoView();
    }, top);
    await visit.page.screenshot({ path: join(screenshots, `${width}-${colorScheme}.png`) });
    await visit.context.close();
  };
  const refuse = async (visit) => {
    await visit.page.locator('#sign-in-username').fill('anna');
    await visit.page.locator('#sign-in-password').fill('wrong');
    await visit.refused('#sign-in-panel', 'Sign in');
  };
  await take(1280, 860, 'light', refuse);
  await take(360, 780, 'light', async (visit) => {
    await refuse(visit);
    return '#sign-in-panel .field:nth-of-type(2)';
  });
  await take(1280, 860, 'dark', async (visit) => {
    await visit.demo('an admin');
    await visit.view('Operator');
    for (const panel of ['#read-refusals', '#read-audit', '#read-alerts']) await visit.answered(panel, 'ok');
  });
  await take(360, 780, 'dark', async (visit) => {
    const { page } = visit;
    await visit.demo('a member');
    await visit.view('AI log');
    const models = ['model-small', 'model-small', 'model-large', 'model-large', 'model-large'];
    for (const [i, model] of models.entries()) {
      await page.locator('#add-entry-model').fill(model);
      await page.locator('#add-entry-prompt').fill(`Question ${i + 1}`);
      equal(await visit.ask('#add-entry', 'Add the entry'), 'Status 201', 'adding an entry');
      await visit.answered('#read-entries', 'ok');
    }
    await page.getByRole('banner').getByRole('button', { name: 'Sign out' }).click();
    await visit.isOpen('sign-in');
    await visit.demo('an admin');
    await visit.view('Evaluations');
    await visit.answered('#read-all-entries', 'ok');
    for (const [i, score] of [5, 4, 5, 2, 3].entries()) {
      await page.locator('#read-all-entries [type="radio"]').nth(i).check();
      await page.locator('#score-form').getByLabel(String(score), { exact: true }).check();
      equal(await visit.ask('#score-entry', 'Score the entry'), 'Status 201', 'a score');
      await visit.answered('#read-results', 'ok');
    }
    return '#read-results';
  });
}

const browser = await chromium.launch({ executablePath, chromiumSandbox: process.getuid?.() !== 0 });
let ended = 0;
if (screenshots) {
  await takeScreenshots(browser);
} else {
  for (const [name, play] of Object.entries(scenarios)) {
    let error;
    try {
      await play(browser);
    } catch (thrown) {
      error = String(thrown.stack ?? thrown);
    }
    ended++;
    console.log(JSON.stringify({ name, error }));
  }
}
await browser.close();
console.log(JSON.stringify({ ended }));
