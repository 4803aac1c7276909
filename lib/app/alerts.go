package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/weirlimits/weir/lib/alerts"
	"github.com/weirlimits/weir/lib/stuffing"
	"github.com/weirlimits/weir/lib/webhook"
)

// alerting are the policies whose repeated refusals raise an alert: those of one account's password. The trigger
// alerts_raise and its index have the same names.
var alerting = []string{failedSignIns, failedSignInsOnDevice}

// The time for sending alerts: in a sweep, of which the rest is for deleting, and in a request that somebody waits for.
const (
	alertSweepTime   = 4 * time.Second
	alertPassingTime = time.Second
)

// refused notes that an alert may have been raised. The request that did it doesn't wait for it to be sent: nothing shows in
// its time, and nobody who guesses learns of it.
func (a *App) refused(policies []string) {
	if slices.ContainsFunc(policies, func(name string) bool { return slices.Contains(alerting, name) }) {
		a.alerted.Store(true)
	}
}

// sendAlertsInPassing sends what is due, if this process has noted that there may be something. It is for requests that
// compare no password.
func (a *App) sendAlertsInPassing(ctx context.Context) {
	if a.alerted.CompareAndSwap(true, false) {
		a.sendAlerts(ctx, alertPassingTime)
	}
}

func (a *App) sendAlerts(ctx context.Context, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	if err := a.counters.sendAlerts(ctx); err != nil {
		a.log.WarnContext(ctx, "alert not sent", slog.String("error", err.Error()))
	}
}

// alertSender sends alerts to the webhook of the settings; nil without one.
func alertSender(settings Settings, shard string) alerts.Sender {
	if settings.Webhook == nil {
		return nil
	}
	return alertWebhook{webhook.New(*settings.Webhook), tag(shard)}
}

type alertWebhook struct {
	webhook *webhook.Webhook
	tag     string // of the shard that the alert was raised in
}

// alertMessage is what a receiver gets. It names nobody. Key is of repeated refusals, Attack of credential stuffing.
type alertMessage struct {
	ID      string            `json:"id"` // the message's too
	Kind    string            `json:"kind"`
	At      time.Time         `json:"at"`
	Policy  string            `json:"policy"`
	Key     string            `json:"key,omitempty"`
	Windows int64             `json:"windows"`
	LastAt  time.Time         `json:"lastAt"`
	Attempt int64             `json:"attempt"`
	Text    string            `json:"text"`
	Attack  *stuffing.Figures `json:"attack,omitempty"`
}

// Send implements alerts.Sender.
func (w alertWebhook) Send(ctx context.Context, alert alerts.Alert) error {
	message := alertMessage{
		// With the time, it is another one than any of a database that was made anew.
		ID:      fmt.Sprintf("alert-%d-%d%s", alert.ID, alert.At.UnixMicro(), w.tag),
		Kind:    alert.Kind,
		At:      alert.At,
		Policy:  alert.Policy,
		Windows: alert.Windows,
		LastAt:  alert.Last,
		Attempt: alert.Attempts,
	}
	if alert.Kind == alerts.CredentialStuffing {
		message.Attack = &stuffing.Figures{}
		if err := json.Unmarshal([]byte(alert.Figures), message.Attack); err != nil {
			return errors.New("app: an attack whose figures can't be read")
		}
		message.Text = attackText(*message.Attack, alert.At)
	} else {
		message.Key = keyText(alert.Key)
		message.Text = fmt.Sprintf("The limit %s has refused one account in %d windows, the last at %s.",
			alert.Policy, alert.Windows, alert.Last.Format(time.RFC3339))
	}
	body, err := json.Marshal(message)
	if err != nil {
		return errors.New("app: an alert that can't be written as JSON")
	}
	return w.webhook.Post(ctx, message.ID, body)
}

// keyText writes a key of the limiter's, the first 63 bits of an HMAC.
func keyText(key int64) string { return fmt.Sprintf("%016x", key) }
