package faults_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/tursodatabase/libsql-client-go/libsql"

	hranaclient "github.com/weirlimits/weir/lib/hrana"
	"github.com/weirlimits/weir/lib/testkit/faults"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

var insert = hranaclient.Statement{Text: hranaclient.NewText("INSERT INTO a VALUES (1) RETURNING x")}

func TestEachFaultFailsAndCarriesOutWhatItSays(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { eachFault(t, hrana.Start(t, hrana.Config{}).URL) })
	turso.Each(t, func(t *testing.T, server *turso.Server) { eachFault(t, server.URL) })
}

func eachFault(t *testing.T, server string) {
	direct := hranaclient.New(server, "")
	defer direct.Close()
	ask := func(sql string) [][]string {
		t.Helper()
		results, err := direct.Query(t.Context(), hranaclient.Statement{Text: hranaclient.NewText(sql)})
		if err != nil || results[0].Err != nil {
			t.Fatal(results, err)
		}
		return results[0].Rows
	}
	ask("CREATE TABLE a (x INTEGER NOT NULL) STRICT")
	for _, fault := range faults.All() {
		t.Run(fault.Name, func(t *testing.T) {
			ask("DELETE FROM a")
			proxy := faults.Start(t, server)
			var silences atomic.Int64
			proxy.Silence = func() { silences.Add(1) }
			client := hranaclient.New(proxy.URL, faults.Token)
			defer client.Close()
			// The first answer tells the client whether the server closes streams.
			if _, err := client.Query(t.Context(), hranaclient.Statement{Text: hranaclient.NewText("SELECT 1")}); err != nil {
				t.Fatal(err)
			}
			rows := func() int {
				n, err := strconv.Atoi(ask("SELECT count(*) FROM a")[0][0])
				if err != nil {
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
			asked := 1
			if fault.Name == "SQLITE_BUSY" {
				asked = 2 // issue 10, point 8
			}
			if fault.Silent != (silences.Load() == 1) || proxy.Failed() != asked || proxy.Followed() != 0 {
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

// Issue 10, point 0: sqld packs its replies for a client that asks for it, and counts rows; through
// the proxy they are readable, changeable, and counted.
func TestAReplyThatIsPackedIsPassedOnCountedAndSpoilt(t *testing.T) {
	server := turso.StartLibSQL(t)
	proxy := faults.Start(t, server.URL)
	ask := func(url, sql string) (packed bool, body string) {
		t.Helper()
		request, err := http.NewRequest(http.MethodPost, url+"/v2/pipeline", strings.NewReader(`{"requests":[{"type":"execute","stmt":{"sql":"`+sql+`"}},{"type":"close"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept-Encoding", "gzip")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response.Status, err)
		}
		return response.Header.Get("Content-Encoding") != "", string(text)
	}
	if packed, _ := ask(server.URL, "CREATE TABLE a (x INTEGER PRIMARY KEY) STRICT"); !packed {
		t.Error("the server packs nothing, so this test shows nothing")
	}
	before := proxy.Rows()
	if packed, body := ask(proxy.URL, "INSERT INTO a VALUES (1), (2)"); packed || !strings.Contains(body, `"rows_written":2`) {
		t.Errorf("packed %t: %q", packed, body)
	}
	if n := proxy.Rows().Written - before.Written; n != 2 {
		t.Errorf("%d rows written, want 2", n)
	}
	before = proxy.Rows()
	if packed, body := ask(proxy.URL, "SELECT x FROM a"); packed || !strings.Contains(body, `"value":"2"`) {
		t.Errorf("packed %t: %q", packed, body)
	}
	if after := proxy.Rows(); after.Written != before.Written || after.Read-before.Read != 2 {
		t.Errorf("from %+v to %+v, want 2 rows read and none written", before, after)
	}
	proxy.Fail(faults.Named(t, "wrong types"), nil)
	if _, body := ask(proxy.URL, "SELECT x FROM a"); !strings.Contains(body, `"value":2`) {
		t.Errorf("not spoilt: %q", body)
	}
}

// Issue 10, point 8: a refused statement is not carried out, and the others of its request are.
func TestARefusedStatementAloneIsNotCarriedOut(t *testing.T) {
	test := func(t *testing.T, url string) {
		proxy := faults.Start(t, url)
		db, err := sql.Open("libsql", proxy.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec("CREATE TABLE a (x INTEGER NOT NULL) STRICT"); err != nil {
			t.Fatal(err)
		}
		for _, busy := range faults.Busy() {
			proxy.Refuse(busy, func(sql string) bool { return strings.Contains(sql, "(2)") })
			for _, text := range []string{"INSERT INTO a VALUES (2)", "BEGIN; INSERT INTO a VALUES (1); INSERT INTO a VALUES (2); COMMIT"} {
				if _, err := db.Exec(text); err == nil || !strings.Contains(err.Error(), busy.Message) {
					t.Errorf("%s gives %v, want %s", text, err, busy.Message)
				}
			}
		}
		if n := proxy.Refused(); n != 2*len(faults.Busy()) {
			t.Errorf("%d refused", n)
		}
		proxy.Refuse(faults.Refusal{}, nil)
		var n int
		if err := db.QueryRow("SELECT count(*) FROM a").Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows, %v", n, err)
		}
	}
	t.Run("sqlite", func(t *testing.T) { test(t, hrana.Start(t, hrana.Config{}).URL) })
	turso.Each(t, func(t *testing.T, server *turso.Server) { test(t, server.URL) })
}
