package app_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/testkit/faults"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// Issue 10, point 8: a server that is busy at the first of every statement is no outage on any
// route, charges nothing twice, and leaves no right password counted.
func TestAServerThatIsBusyOnceIsAskedAgainOnEveryRoute(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); busyOnce(t, hrana.Start(t, hrana.Config{}).URL, false) })
	t.Run("turso", func(t *testing.T) { t.Parallel(); busyOnce(t, turso.Start(t).URL, false) })
	t.Run("libsql", func(t *testing.T) { t.Parallel(); busyOnce(t, turso.StartLibSQL(t).URL, true) })
}

func busyOnce(t *testing.T, server string, all bool) {
	f := newFaulty(t, server, "refuse")
	who := f.people()
	f.give("someone", "someone@example.org")
	kinds := faults.Busy()
	reads := func(sql string) bool { return strings.HasPrefix(strings.TrimSpace(sql), "SELECT") }
	hits := []struct {
		what string
		hits func(sql string) bool
	}{
		{"nothing", func(string) bool { return false }}, // what the others are held against
		{"every statement", nil},
		{"what reads", reads},
		{"what writes", func(sql string) bool { return !reads(sql) }},
		{"a refund", func(sql string) bool { return strings.Contains(sql, "INSERT INTO rate_limit_refunds") }},
	}
	if !all {
		hits = hits[:2]
	}
	for _, o := range operations {
		var plain map[string]int
		for i, h := range hits {
			body := o.body
			if strings.Contains(body, "RESERVATION") {
				body = strings.Replace(body, "RESERVATION", f.limits(`{"limits":[{"policy":"of-service","subject":"c"}]}`).field(t, "reservation"), 1)
			}
			send := f.cell(o, body, who[o.who])
			before, begun := f.proxy.Refused(), len(f.log.String())
			f.proxy.Refuse(kinds[f.cells%len(kinds)], faults.FirstOfEach(h.hits))
			got := send()
			f.proxy.Refuse(faults.Refusal{}, nil)
			refused := f.proxy.Refused() - before
			if o.request == "POST otp" {
				f.clock.Add(10 * time.Second) // the SMS gateway's turn
			}
			used := f.used()
			wrong := func(format string, args ...any) {
				t.Helper()
				t.Errorf("%s with %s busy once (%d refused): %s (status %d, body %s, log %s)", o.request+" "+o.body, h.what, refused,
					fmt.Sprintf(format, args...), got.StatusCode, got.body, f.log.String()[begun:])
			}
			if got.StatusCode != o.normal {
				wrong("want %d", o.normal)
			}
			if i == 0 {
				plain = used
			} else if !maps.Equal(used, plain) {
				wrong("charged %v, want %v", used, plain)
			}
			if strings.Contains(f.log.String()[begun:], `"level":"WARN"`) {
				wrong("a warning")
			}
			if h.what == "every statement" && refused == 0 {
				wrong("nothing was refused, so this shows nothing")
			}
		}
	}
}

// cell moves the clock on, and returns what sends an operation with a body, from an address of its
// own.
func (f *faulty) cell(o operation, body string, who func(*http.Request)) (send func() reply) {
	f.cells += 3 // beyond a window of an hour; all cells are within a session's fourteen days
	f.clock.At(time.Duration(f.cells) * cellTime)
	method, path, _ := strings.Cut(o.request, " ")
	body = strings.Replace(body, "####", fmt.Sprintf("%04d", f.cells%10_000), 1)
	body = strings.ReplaceAll(body, "#", fmt.Sprint(f.cells))
	address := fmt.Sprintf("2001:db8:%x::1", f.cells)
	return func() reply { return f.send(address, method, "/api/"+path, body, who) }
}

// used is what of each policy was charged since the current cell began, and stands.
func (f *faulty) used() map[string]int {
	f.t.Helper()
	rows, err := f.direct.Query("SELECT DISTINCT policy FROM rate_limits")
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	var policies []string
	for rows.Next() {
		var policy string
		if err := rows.Scan(&policy); err != nil {
			f.t.Fatal(err)
		}
		policies = append(policies, policy)
	}
	if err := rows.Err(); err != nil {
		f.t.Fatal(err)
	}
	used := map[string]int{}
	for _, policy := range policies {
		if n := f.charged(policy); n > 0 {
			used[policy] = n
		}
	}
	return used
}

// Issue 10, point 8: a server that is always busy is one 503 on every route, asked twice for a
// statement, and never a reason to open the breaker.
func TestAServerThatIsAlwaysBusyIsOne503(t *testing.T) {
	f := newFaulty(t, turso.StartLibSQL(t).URL, "refuse")
	who := f.people()
	f.give("someone", "someone@example.org")
	for _, o := range operations {
		if strings.Contains(o.body, "RESERVATION") {
			continue
		}
		send := f.cell(o, o.body, who[o.who])
		var mu sync.Mutex
		asked := map[string]int{}
		f.proxy.Refuse(faults.Busy()[0], func(sql string) bool {
			mu.Lock()
			defer mu.Unlock()
			asked[sql]++
			return true
		})
		begun := f.clock.Now()
		got := send()
		f.proxy.Refuse(faults.Refusal{}, nil)
		if got.StatusCode != o.refused || got.Header.Get("Retry-After") == "" {
			t.Errorf("%s %s: status %d, header %v", o.request, o.body, got.StatusCode, got.Header)
		}
		mu.Lock()
		if counts := slices.Sorted(maps.Values(asked)); len(counts) == 0 || counts[len(counts)-1] > 2 {
			t.Errorf("%s %s: statements asked %v times, want 2 at the most", o.request, o.body, counts)
		}
		mu.Unlock()
		if !f.clock.Now().Equal(begun) || len(f.used()) > 0 {
			t.Errorf("%s %s: the clock moved by %v, charged %v", o.request, o.body, f.clock.Now().Sub(begun), f.used())
		}
	}
	f.cells++
	f.clock.At(time.Duration(f.cells) * cellTime)
	f.exact("203.0.113.77") // the breaker is closed
}
