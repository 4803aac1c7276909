package faults_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	hranaclient "github.com/weirlimits/weir/lib/hrana"
	"github.com/weirlimits/weir/lib/testkit/faults"
	"github.com/weirlimits/weir/lib/testkit/hrana"
)

var insert = hranaclient.Statement{Text: hranaclient.NewText("INSERT INTO a VALUES (1) RETURNING x")}

func TestEachFaultFailsAndCarriesOutWhatItSays(t *testing.T) {
	for _, fault := range faults.All() {
		t.Run(fault.Name, func(t *testing.T) {
			server := hrana.Start(t, hrana.Config{})
			if _, err := server.DB().Exec("CREATE TABLE a (x INTEGER NOT NULL) STRICT"); err != nil {
				t.Fatal(err)
			}
			proxy := faults.Start(t, server.URL)
			var silences atomic.Int64
			proxy.Silence = func() { silences.Add(1) }
			client := hranaclient.New(proxy.URL, faults.Token)
			defer client.Close()
			rows := func() (n int) {
				if err := server.DB().QueryRow("SELECT count(*) FROM a").Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			proxy.Fail(fault, nil)
			results, err := client.Query(t.Context(), insert)
			if err == nil && results[0].Err == nil {
				t.Errorf("no error: %v", results)
			}
			if want := map[bool]int{true: 1}[fault.Applied]; rows() != want {
				t.Errorf("%d rows, want %d", rows(), want)
			}
			if fault.Silent != (silences.Load() == 1) || proxy.Failed() != 1 || proxy.Followed() != 0 {
				t.Errorf("%d silences, %d failed, %d followed", silences.Load(), proxy.Failed(), proxy.Followed())
			}
			proxy.Heal()
			before := rows()
			if results, err := client.Query(t.Context(), insert); err != nil || results[0].Err != nil || rows() != before+1 {
				t.Errorf("after the fault: %v, %v, %d rows", results, err, rows())
			}
		})
	}
}

func TestASilenceLastsUntilTheClientHasGone(t *testing.T) {
	proxy := faults.Start(t, hrana.Start(t, hrana.Config{}).URL)
	proxy.Fail(faults.Named(t, "silence"), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := hranaclient.New(proxy.URL, "").Query(ctx, insert); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// A client that follows redirects is found: the statements come to where they lead.
func TestAClientThatFollowsARedirectIsFound(t *testing.T) {
	proxy := faults.Start(t, hrana.Start(t, hrana.Config{}).URL)
	proxy.Fail(faults.Named(t, "redirect"), nil)
	response, err := http.Post(proxy.URL+"/v2/pipeline", "application/json", strings.NewReader(`{"requests":[{"type":"execute","stmt":{"sql":"SELECT 1"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if n := proxy.Followed(); n != 1 {
		t.Errorf("%d requests followed, want 1", n)
	}
}
