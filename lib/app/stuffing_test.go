package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/stuffing"
)

func detecting(s *app.Settings) { s.Stuffing = &stuffing.Thresholds{} }

// stuff tries one wrong password for each of some accounts, each from another address, in the minute that it is.
func (w *world) stuff(guesses int) {
	w.t.Helper()
	for i := range guesses {
		expect(w.t, w.signIn(fmt.Sprintf("198.51.100.%d", i), fmt.Sprint("victim", i), "a wrong password"), http.StatusUnauthorized)
	}
}

// Row D9: in another process, over the same database, after a cold start.
func TestAnAttackIsOneAlertAndKnownToEveryProcessWhileItIsOn(t *testing.T) {
	h := newHook(t, nil)
	w := hooked(t, h, detecting)
	w.member("someone")
	other := func() *world { return beside(t, h, w, detecting) }
	if app.UnderAttack(w.app) {
		t.Error("an attack is on before there is one")
	}
	for minute := range 5 {
		w.clock.At(time.Duration(minute) * time.Minute)
		w.stuff(60)
		expect(t, w.signIn("203.0.113.1", "someone", rightPassword), http.StatusOK)
	}
	if !app.UnderAttack(w.app) || !app.UnderAttack(other().app) {
		t.Error("the attack is not known")
	}
	timer := other()
	timer.sweep()
	timer.sweep()
	got := h.received(t)
	if len(got) != 1 || w.count("SELECT count(*) FROM alerts") != 1 {
		t.Fatalf("received were %v", got)
	}
	begun := storetest.Start.Add(time.Minute).UTC()
	text, _ := got[0]["text"].(string)
	attack, _ := got[0]["attack"].(map[string]any)
	if got[0]["kind"] != "credential-stuffing" || got[0]["policy"] != "sign-in" || got[0]["key"] != nil || got[0]["windows"] != 4.0 ||
		got[0]["at"] != begun.Format(time.RFC3339) || !strings.Contains(text, "60 of 61 sign-ins failed in 5 minutes") {
		t.Errorf("received was %v", got[0])
	}
	if attack["failures"] != 60.0 || attack["successes"] != 1.0 || attack["failuresPerMinute"] != 12.0 || attack["ratioPercent"] != 98.0 ||
		attack["normalRatioPercent"] != 20.0 || attack["accounts"].(float64) < 50 || attack["addresses"].(float64) < 50 ||
		fmt.Sprint(attack["signs"]) != "[failures accounts-and-addresses failure-ratio]" {
		t.Errorf("its figures are %v", attack)
	}
	shown := w.view("alerts", byToken).items(t).Items
	if len(shown) != 1 || fmt.Sprint(shown[0]["attack"]) != fmt.Sprint(got[0]["attack"]) || shown[0]["key"] != nil {
		t.Errorf("shown are %v", shown)
	}
	if found := traces(fmt.Sprint(got, shown)+w.dump("alerts", "attacks", "sign_in_figures")+w.log.String(), "someone", "victim1", "198.51.100.1"); len(found) > 0 {
		t.Errorf("found %v", found)
	}

	// It ends by itself.
	w.clock.At(4*time.Minute + stuffing.Quiet)
	if !app.UnderAttack(w.app) || !app.UnderAttack(other().app) {
		t.Error("it is over too early")
	}
	w.clock.At(4*time.Minute + stuffing.Quiet + stuffing.Remember)
	if app.UnderAttack(w.app) || app.UnderAttack(other().app) {
		t.Error("it goes on for ever")
	}
}

// Issue 10.21: an attack that takes up all hashing doesn't hide itself: sign-ins that are turned
// away count.
func TestASignInThatIsTurnedAwayByHashingCountsForTheDetection(t *testing.T) {
	w := newWorld(t, detecting)
	w.clock.Add(time.Minute)
	for i := range 60 {
		app.TurnedAway(w.app, fmt.Sprint("victim", i), fmt.Sprintf("198.51.100.%d", i))
	}
	if n := w.count(`SELECT coalesce(sum(value), 0) FROM sign_in_figures WHERE id < 1099511627776 AND id % 2 = 1`); n != 60 {
		t.Errorf("%d failures count, want 60", n)
	}
	w.clock.Add(time.Minute)
	app.TurnedAway(w.app, "another", "203.0.113.199")
	w.clock.Add(stuffing.Remember)
	if !app.UnderAttack(w.app) || strings.Contains(w.log.String(), "sign-in not counted") {
		t.Errorf("the attack is not known; the log has %s", w.log.String())
	}
}

// Row D9: as any alert, it goes with the next request of the process that only reads, and with none that guesses.
func TestTheAlertOfAnAttackGoesWithALaterRequest(t *testing.T) {
	h := newHook(t, nil)
	w := hooked(t, h, detecting)
	for minute := range 2 {
		w.clock.At(time.Duration(minute) * time.Minute)
		w.stuff(60)
	}
	if got := h.received(t); len(got) != 0 {
		t.Fatalf("a guess has sent %v", got)
	}
	for range 2 {
		w.send("203.0.113.9", "GET", "/api/sign-in", "")
		if got := h.received(t); len(got) != 1 {
			t.Fatalf("received were %v", got)
		}
	}
}

// Row D9: an operator's word holds in every process, and for those that are warm some seconds later.
func TestAnAttackThatAnOperatorEndsIsOver(t *testing.T) {
	h := newHook(t, nil)
	w := hooked(t, h, detecting)
	for minute := range 2 {
		w.clock.At(time.Duration(minute) * time.Minute)
		w.stuff(60)
	}
	if !app.UnderAttack(w.app) {
		t.Fatal("no attack is on")
	}
	operator := stuffing.New(w.db.DB, stuffing.Config{Now: w.clock.Now})
	if ended, err := operator.End(t.Context()); !ended || err != nil {
		t.Fatalf("ended: %t, %v", ended, err)
	}
	if app.UnderAttack(beside(t, h, w, detecting).app) {
		t.Error("a new process goes on")
	}
	w.clock.Add(stuffing.Remember)
	if app.UnderAttack(w.app) {
		t.Error("an old process goes on")
	}
}

// A process that knows asks the database nothing.
func TestWhetherAnAttackIsOnIsReadOnceInAWhile(t *testing.T) {
	w := newWorld(t, detecting)
	app.UnderAttack(w.app)
	if _, err := w.db.Exec(`DROP TABLE attacks`); err != nil {
		t.Fatal(err)
	}
	w.clock.Add(stuffing.Remember - time.Second)
	app.UnderAttack(w.app)
	if text := w.log.String(); strings.Contains(text, "not known") {
		t.Fatalf("it was read: %s", text)
	}
	w.clock.Add(time.Second)
	for range 3 {
		if app.UnderAttack(w.app) {
			t.Error("a database that fails is an attack")
		}
	}
	if n := strings.Count(w.log.String(), "not known"); n != 1 {
		t.Errorf("%d lines in the log: %s", n, w.log)
	}
}

// Row D9: what can't be counted is a line of the log.
func TestASignInThatCannotBeCountedIsAnsweredTheSame(t *testing.T) {
	w := newWorld(t, detecting)
	w.member("someone")
	if _, err := w.db.Exec(`DROP TABLE sign_in_figures`); err != nil {
		t.Fatal(err)
	}
	expect(t, w.signIn("203.0.113.1", "someone", rightPassword), http.StatusOK)
	expect(t, w.signIn("203.0.113.1", "someone", "a wrong password"), http.StatusUnauthorized)
	if text := w.log.String(); strings.Count(text, "sign-in not counted") != 2 || strings.Contains(text, "203.0.113.1") {
		t.Errorf("the log says %s", text)
	}
}

// Off means that no statement is run, not even one that fails.
func TestWithoutDetectionNothingIsAskedOfTheDatabase(t *testing.T) {
	w := newWorld(t, withTokens)
	w.member("someone")
	if _, err := w.db.Exec(`DROP TABLE sign_in_figures; DROP TABLE attacks`); err != nil {
		t.Fatal(err)
	}
	expect(t, w.signIn("203.0.113.1", "someone", rightPassword), http.StatusOK)
	expect(t, w.signIn("203.0.113.1", "someone", "a wrong password"), http.StatusUnauthorized)
	if app.UnderAttack(w.app) {
		t.Error("an attack is on")
	}
	w.sweep()
	if text := w.log.String(); strings.Contains(text, "counted") || strings.Contains(text, "not known") {
		t.Errorf("the log says %s", text)
	}
}

// Only passwords that were compared count: a refused guess says nothing of who guesses what.
func TestExactlyThePasswordsThatAreComparedAreCounted(t *testing.T) {
	w := newWorld(t, detecting)
	w.member("someone")
	const failures, successes = `SELECT coalesce(sum(value), 0) FROM sign_in_figures WHERE id < 1099511627776 AND id % 2 = 1`,
		`SELECT coalesce(sum(value), 0) FROM sign_in_figures WHERE id < 1099511627776 AND id % 2 = 0`
	for i := range 3 {
		expect(t, w.signIn(fmt.Sprintf("203.0.113.%d", i), " SomeOne", rightPassword), http.StatusOK)
	}
	w.guess("someone", 12)
	w.send("203.0.113.1", "POST", "/api/sign-in", `{"username":"someone"}`)
	w.send("203.0.113.1", "POST", "/api/demo-sign-in", `{"role":"member"}`)
	if n, m := w.count(failures), w.count(successes); n != 8 || m != 3 {
		t.Errorf("%d failures and %d successes are counted, want 8 and 3", n, m)
	}
	// Of one account there is one register, however its name is written.
	expect(t, w.signIn("203.0.113.9", "Nobody", "a wrong password"), http.StatusUnauthorized)
	const accounts = `SELECT count(*) FROM sign_in_figures WHERE id >= 1099511627776 AND id % 1024 < 256`
	if n := w.count(accounts); n != 2 {
		t.Fatalf("%d registers, want two", n)
	}
	expect(t, w.signIn("203.0.113.9", " nobody ", "a wrong password"), http.StatusUnauthorized)
	if n := w.count(accounts); n != 2 {
		t.Errorf("another spelling is another account: %d registers", n)
	}
}
