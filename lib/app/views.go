package app

import (
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weirlimits/weir/lib/ailog"
	"github.com/weirlimits/weir/lib/alerts"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/web"
)

// view shows operators what limits did. Keys tell which rows are of one subject. Who sees them and makes a limit of somebody's
// refuse can find out the key of that, and then what else happened to it: without keys is for whom anybody may be.
func (a *App) view(call *web.Call, keys bool) (web.Reply, error) {
	view, err := call.Query("view")
	if err != nil {
		return web.Reply{}, err
	}
	if _, _, err := place(call); err != nil { // also of a view that has no pages
		return web.Reply{}, err
	}
	if call.Request.URL.Query().Has("op") {
		return web.Reply{}, web.BadRequest("op", "A view takes no operation.")
	}
	switch view {
	case "refusals":
		return a.viewRefusals(call)
	case "audit":
		return a.viewAudit(call, keys)
	case "alerts":
		return a.viewAlerts(call, keys)
	}
	return web.Reply{}, web.BadRequest("view", "The view is one of refusals, audit and alerts.")
}

type policyRefusals struct {
	Name     string                       `json:"name"`
	Refusals [sqlstore.RefusalHours]int64 `json:"refusals"`
}

// viewRefusals tells of every policy, those that refused nothing included: a plot needs no other source.
func (a *App) viewRefusals(call *web.Call) (web.Reply, error) {
	hourly, err := a.store.Refusals(call.Context())
	if err != nil {
		return web.Reply{}, web.Unavailable(err)
	}
	list := []policyRefusals{}
	place := map[string]int{}
	for _, policy := range a.policies.All() {
		place[policy.Name] = len(list)
		list = append(list, policyRefusals{Name: policy.Name})
	}
	for _, policy := range hourly.Policies {
		if i, found := place[policy.Policy]; found {
			list[i].Refusals = policy.Hours
			continue
		}
		list = append(list, policyRefusals{policy.Policy, policy.Hours}) // it was a policy when it refused
	}
	return web.Reply{Body: struct {
		From          time.Time        `json:"from"`
		BucketSeconds int64            `json:"bucketSeconds"`
		Policies      []policyRefusals `json:"policies"`
	}{hourly.From, 3600, list}}, nil
}

type auditItem struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Policy string    `json:"policy"`
	Action string    `json:"action"`
	Used   *int64    `json:"used,omitempty"`
	Until  time.Time `json:"until,omitzero"`
	Key    string    `json:"key,omitempty"`
}

func (a *App) viewAudit(call *web.Call, keys bool) (web.Reply, error) {
	return pageOf(call,
		func(below int64, limit int) ([]sqlstore.AuditRow, error) {
			rows, err := a.store.Audit(call.Context(), below, limit)
			if err != nil {
				return nil, web.Unavailable(err)
			}
			return rows, nil
		},
		func(row sqlstore.AuditRow) (auditItem, int64) {
			item := auditItem{ID: row.ID, At: row.At, Policy: row.Policy, Action: row.Action, Until: row.Until}
			switch ratelimit.Action(row.Action) {
			case ratelimit.Reset, ratelimit.Ban, ratelimit.Allow:
			default:
				item.Used = &row.Used
			}
			if keys {
				item.Key = keyText(row.Key)
			}
			return item, row.ID
		})
}

type alertItem struct {
	ID            int64          `json:"id"`
	At            time.Time      `json:"at"`
	Kind          string         `json:"kind"`
	Policy        string         `json:"policy"`
	Windows       int64          `json:"windows"`
	LastAt        time.Time      `json:"lastAt"`
	Attempts      int64          `json:"attempts"`
	NextAttemptAt time.Time      `json:"nextAttemptAt,omitzero"`
	SentAt        time.Time      `json:"sentAt,omitzero"`
	Key           string         `json:"key,omitempty"`
	Attack        jsontext.Value `json:"attack,omitzero"`
}

func (a *App) viewAlerts(call *web.Call, keys bool) (web.Reply, error) {
	return pageOf(call,
		func(below int64, limit int) ([]alerts.Alert, error) {
			page, err := a.alerts.Page(call.Context(), below, limit)
			return page, storage(err)
		},
		func(alert alerts.Alert) (alertItem, int64) {
			item := alertItem{
				ID: alert.ID, At: alert.At, Kind: alert.Kind, Policy: alert.Policy, Windows: alert.Windows, LastAt: alert.Last,
				Attempts: alert.Attempts, SentAt: alert.Sent,
			}
			if a.settings.Webhook != nil {
				item.NextAttemptAt = alert.Next
			}
			switch {
			case alert.Kind == alerts.CredentialStuffing:
				item.Attack = jsontext.Value(alert.Figures)
			case keys:
				item.Key = keyText(alert.Key)
			}
			return item, alert.ID
		})
}

// cursorForm is that of a number that the database can hold.
var cursorForm = regexp.MustCompile(`^[1-9][0-9]{0,17}$`)

// place reads where a page begins, below a number, and how many items it may have.
func place(call *web.Call) (below int64, limit int, err error) {
	text, err := call.Query("cursor")
	if err != nil {
		return 0, 0, err
	}
	below = math.MaxInt64
	if text != "" {
		if !cursorForm.MatchString(text) {
			return 0, 0, web.BadRequest("cursor", "This is no cursor of a view. Please begin without one.")
		}
		if below, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, 0, err // the form has no such number
		}
	}
	limit, err = pageLimit(call)
	if err == nil && (limit < 1 || limit > ailog.MaxPageEntries) {
		err = badPageLimit()
	}
	return below, limit, err
}

// pageOf answers with a page of what is numbered in the order of time, newest first. Its cursor is the number of the last
// item: what is added meanwhile comes before the first page, so that none is skipped and none appears twice.
func pageOf[Row, Item any](call *web.Call, read func(below int64, limit int) ([]Row, error), show func(Row) (Item, int64)) (web.Reply, error) {
	below, limit, err := place(call)
	if err != nil {
		return web.Reply{}, err
	}
	rows, err := read(below, limit+1)
	if err != nil {
		return web.Reply{}, err
	}
	body := struct {
		Items []Item `json:"items"`
		Next  string `json:"next,omitempty"`
	}{Items: []Item{}}
	for i, row := range rows[:min(len(rows), limit)] {
		item, number := show(row)
		body.Items = append(body.Items, item)
		if i == limit-1 && len(rows) > limit {
			body.Next = strconv.FormatInt(number, 10)
		}
	}
	return web.Reply{Body: body}, nil
}
