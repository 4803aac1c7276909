package app

import (
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	done, err := a.openView(call)
	if err != nil {
		return web.Reply{}, err
	}
	defer done()
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

// maxViews is how many views a process reads at once. What operators look at takes milliseconds of the database that all other
// requests wait for too.
const maxViews = 2

// openView waits until few enough views are read. A view whose request's time is over before that is answered 503.
func (a *App) openView(call *web.Call) (done func(), err error) {
	select {
	case a.views <- struct{}{}:
		return func() { <-a.views }, nil
	case <-call.Context().Done():
		return nil, &web.Problem{
			Status: http.StatusServiceUnavailable,
			Detail: "Too many views are being read at the moment. Please try again in a few seconds.",
		}
	}
}

type policyRefusals struct {
	Name     string                       `json:"name"`
	Refusals [sqlstore.RefusalHours]int64 `json:"refusals"`
}

// viewRefusals tells of every policy, those that refused nothing included: a plot needs no other source.
func (a *App) viewRefusals(call *web.Call) (web.Reply, error) {
	hourly, err := a.counters.refusals(call.Context())
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
		Estimated     bool             `json:"estimated,omitzero"`
	}{hourly.From, 3600, list, hourly.Estimated}}, nil
}

type auditItem struct {
	ID     int64     `json:"id"`
	Shard  int       `json:"shard,omitzero"`
	At     time.Time `json:"at"`
	Policy string    `json:"policy"`
	Action string    `json:"action"`
	Used   *int64    `json:"used,omitempty"`
	Until  time.Time `json:"until,omitzero"`
	Key    string    `json:"key,omitempty"`
}

func (a *App) viewAudit(call *web.Call, keys bool) (web.Reply, error) {
	return pageOf(call, a.counters.all,
		func(one *counter, below int64, limit int) ([]sqlstore.AuditRow, error) {
			rows, err := one.store.Audit(call.Context(), below, limit)
			if err != nil {
				return nil, web.Unavailable(err)
			}
			return rows, nil
		},
		func(row sqlstore.AuditRow) (int64, time.Time) { return row.ID, row.At },
		func(row sqlstore.AuditRow, shard int) auditItem {
			item := auditItem{ID: row.ID, Shard: shard, At: row.At, Policy: row.Policy, Action: row.Action, Until: row.Until}
			switch ratelimit.Action(row.Action) {
			case ratelimit.Reset, ratelimit.Ban, ratelimit.Allow:
			default:
				item.Used = &row.Used
			}
			if keys {
				item.Key = keyText(row.Key)
			}
			return item
		})
}

type alertItem struct {
	ID            int64          `json:"id"`
	Shard         int            `json:"shard,omitzero"`
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
	return pageOf(call, a.counters.alerted,
		func(one *counter, below int64, limit int) ([]alerts.Alert, error) {
			page, err := one.alerts.Page(call.Context(), below, limit)
			return page, storage(err)
		},
		func(alert alerts.Alert) (int64, time.Time) { return alert.ID, alert.At },
		func(alert alerts.Alert, shard int) alertItem {
			item := alertItem{
				ID: alert.ID, Shard: shard, At: alert.At, Kind: alert.Kind, Policy: alert.Policy, Windows: alert.Windows, LastAt: alert.Last,
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
			return item
		})
}

// cursorForm is that of a number that the database can hold, or of one for each shard.
var cursorForm = regexp.MustCompile(`^[1-9][0-9]{0,17}(\.[1-9][0-9]{0,17})*$`)

func noCursor() error {
	return web.BadRequest("cursor", "This is no cursor of a view. Please begin without one.")
}

// place reads where a page begins, below a number in each database, or none for the beginning, and how many items it may have.
func place(call *web.Call) (below []int64, limit int, err error) {
	text, err := call.Query("cursor")
	if err != nil {
		return nil, 0, err
	}
	if text != "" {
		if !cursorForm.MatchString(text) {
			return nil, 0, noCursor()
		}
		for number := range strings.SplitSeq(text, ".") {
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return nil, 0, err // the form has no such number
			}
			below = append(below, n)
		}
	}
	limit, err = pageLimit(call)
	if err == nil && (limit < 1 || limit > ailog.MaxPageEntries) {
		err = badPageLimit()
	}
	return below, limit, err
}

// pageOf answers with a page of what each database numbers in the order of time, newest first. Its cursor is the number of the last
// item of each: what is added meanwhile comes before the first page, so that none is skipped and none appears twice.
func pageOf[Row, Item any](
	call *web.Call, databases []*counter, read func(one *counter, below int64, limit int) ([]Row, error), at func(Row) (int64, time.Time), show func(row Row, shard int) Item,
) (web.Reply, error) {
	below, limit, err := place(call)
	if err == nil && len(below) > 0 && len(below) != len(databases) {
		err = noCursor()
	}
	if err != nil {
		return web.Reply{}, err
	}
	if len(below) == 0 {
		below = slices.Repeat([]int64{math.MaxInt64}, len(databases))
	}
	rows := make([][]Row, len(databases))
	if err := each(databases, func(i int, one *counter) (err error) {
		rows[i], err = read(one, below[i], limit+1)
		return err
	}); err != nil {
		return web.Reply{}, web.Unavailable(err)
	}
	for i := range below { // a first page settles where each database begins
		if below[i] == math.MaxInt64 {
			below[i] = 1
			if len(rows[i]) > 0 {
				number, _ := at(rows[i][0])
				below[i] = number + 1
			}
		}
	}
	body := struct {
		Items []Item `json:"items"`
		Next  string `json:"next,omitempty"`
	}{Items: []Item{}}
	for {
		newest := -1
		var latest time.Time
		for i := range rows {
			if len(rows[i]) > 0 {
				if _, when := at(rows[i][0]); newest < 0 || when.After(latest) {
					newest, latest = i, when
				}
			}
		}
		if newest < 0 {
			return web.Reply{Body: body}, nil
		}
		if len(body.Items) == limit {
			numbers := make([]string, len(below))
			for i, number := range below {
				numbers[i] = strconv.FormatInt(number, 10)
			}
			body.Next = strings.Join(numbers, ".")
			return web.Reply{Body: body}, nil
		}
		row := rows[newest][0]
		rows[newest] = rows[newest][1:]
		below[newest], _ = at(row)
		body.Items = append(body.Items, show(row, databases[newest].shard))
	}
}
