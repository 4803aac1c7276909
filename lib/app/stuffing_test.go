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
