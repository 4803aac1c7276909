package sqlstore_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/hrana"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
)

// BenchmarkRemoteCPU compares the processor time of a decision over HTTP with that of a bare POST of the same bytes to the
// same server, which answers both with what a real one does. Server and client share the process, so the server's part, the
// same in both, is measured alone and taken off.
func BenchmarkRemoteCPU(b *testing.B) {
	const answer = `{"baton":null,"base_url":null,"results":[` +
		`{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"row","decltype":null}],"rows":[[{"type":"text","value":"7 1796000000000000 0 1234567890 3 1 0 0 0 1 "}]],"affected_row_count":1,"last_insert_rowid":null,"replication_index":null,"rows_read":1,"rows_written":1,"query_duration_ms":0.1}}},` +
		`{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"row","decltype":null}],"rows":[[{"type":"text","value":"7 1 3600000000 1000000 1796000000000000 0 0 1234567890 3 1 0 0 0 0 0 1796000000000000 "}]],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null,"rows_read":1,"rows_written":0,"query_duration_ms":0.1}}},` +
		`{"type":"ok","response":{"type":"close"}}]}`
	var sent []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if sent == nil {
			sent = body
		}
		io.WriteString(w, answer)
	}))
	defer server.Close()
	store := sqlstore.NewRemote(hrana.New(server.URL, ""), sqlstore.Config{SweepEvery: -1})
	entries := []ratelimit.Entry{entry(7, "p", 1_000_000, time.Hour)}
	decide := func() {
		if rows, err := store.Decide(b.Context(), entries); err != nil || !rows[0].Charged {
			b.Fatal(rows, err)
		}
	}
	decide()
	post := func() {
		response, err := http.Post(server.URL+"/v2/pipeline", "application/json", bytes.NewReader(sent))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	cpu := func(f func()) time.Duration {
		var before, after syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &before)
		for range 500 {
			f()
		}
		syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		return time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	}
	var decided, posted time.Duration
	rounds := 0
	for b.Loop() {
		decided, posted, rounds = decided+cpu(decide), posted+cpu(post), rounds+500
	}
	b.ReportMetric(float64(decided.Microseconds())/float64(rounds), "µs-decision")
	b.ReportMetric(float64(posted.Microseconds())/float64(rounds), "µs-POST")
	b.ReportMetric(float64(decided)/float64(posted), "ratio")
}
