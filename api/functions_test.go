package handler_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/lambda"
	"github.com/weirlimits/weir/lib/testkit/turso"
	"github.com/weirlimits/weir/lib/testkit/vercel"
)

const secret = "a secret of the functions' tests, long enough"

// platform is the environment of a deployed function on a database.
func platform(url string) []string {
	return []string{"VERCEL=1", "TURSO_DATABASE_URL=" + url, "RATE_LIMIT_SECRET=" + secret, "DEMO=1"}
}

func migrated(t *testing.T, url string) *database.DB {
	t.Helper()
	db, err := database.Open(database.Config{URL: url, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := migration.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

func bootstrap(t *testing.T, route string) string {
	t.Helper()
	path, err := vercel.Build(t).Bootstrap(route)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// answer is what a function answered, with its body read.
type answer struct {
	status int
	header http.Header
	body   string
}

func read(t *testing.T, response *http.Response, err error) answer {
	t.Helper()
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

func request(method, path, address, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RequestURI = ""
	if address != "" {
		r.Header.Set("X-Real-Ip", address)
	}
	return r
}

func wrongSignIn(i int) string {
	return fmt.Sprintf(`{"username":"nobody%d","password":"wrong password"}`, i)
}

// acrossAnEdge says whether the answers come from two windows of a minute: then their resets lie far apart, and the burst
// is no test of one window.
func acrossAnEdge(answers []answer) bool {
	lowest, highest := 60, 0
	for _, a := range answers {
		if reset, err := strconv.Atoi(a.header.Get("Ratelimit-Reset")); err == nil {
			lowest, highest = min(lowest, reset), max(highest, reset)
		}
	}
	return highest-lowest > 30
}

func together(n int, do func(i int) answer) []answer {
	answers := make([]answer, n)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			<-start
			answers[i] = do(i)
		})
	}
	close(start)
	group.Wait()
	return answers
}

func statuses(answers []answer) map[int]int {
	counts := map[int]int{}
	for _, a := range answers {
		counts[a.status]++
	}
	return counts
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Rows B1, B3; cases A01, A02: the functions as they are deployed, each request in an instance of its own.
func TestTwentyBuiltFunctionsAtALimitOfTenAdmitTen(t *testing.T) {
	vercel.Require(t)
	turso.Each(t, twentyBuiltFunctions)
}

func twentyBuiltFunctions(t *testing.T, server *turso.Server) {
	db := migrated(t, server.URL)
	var instances []*lambda.Process
	for range 20 {
		instances = append(instances, lambda.Start(t, bootstrap(t, "sign-in"), platform(server.URL)))
	}
	for try := 1; ; try++ {
		audited := number(t, db.DB, "SELECT count(*) FROM rate_limit_audit")
		address := fmt.Sprintf("203.0.113.%d", try)
		answers := together(20, func(i int) answer {
			response, err := instances[i].Do(request("POST", "/api/sign-in", address, wrongSignIn(i)))
			return read(t, response, err)
		})
		if acrossAnEdge(answers) && try < 4 {
			continue
		}
		if got := statuses(answers); got[401] != 10 || got[429] != 10 {
			t.Errorf("statuses %v, want 10 times 401 and 10 times 429", got)
		}
		if n := number(t, db.DB, "SELECT count(*) FROM rate_limit_audit") - audited; n != 1 {
			t.Errorf("%d audit rows, want 1", n)
		}
		return
	}
}

// Row B3: vercel dev compiles and starts a process for every request.
func TestTwentyRequestsThroughVercelDevAtALimitOfTenAdmitTen(t *testing.T) {
	// A log has no edge that a burst could meet, however long a busy machine takes for twenty starts.
	server := vercel.Dev(t, []string{`RATE_LIMIT_POLICIES=[{"name":"sign-in","algorithm":"sliding-log","limit":10,"window":"1h"}]`})
	response, err := http.Get(server.URL + "/api/usernames?name=someone") // it makes the database
	if first := read(t, response, err); first.status != http.StatusOK {
		t.Fatalf("the name check answers %d %v: %s\n%s", first.status, first.header, first.body, server.Output())
	}
	answers := together(20, func(i int) answer {
		response, err := http.Post(server.URL+"/api/sign-in", "application/json", strings.NewReader(wrongSignIn(i)))
		return read(t, response, err)
	})
	if got := statuses(answers); got[401] != 10 || got[429] != 10 {
		t.Errorf("statuses %v, want 10 times 401 and 10 times 429\n%s", got, server.Output())
	}
	db := migrated(t, "file:"+filepath.Join(server.Dir, ".data", "weir.db"))
	if n := number(t, db.DB, "SELECT count(*) FROM rate_limit_audit WHERE policy = 'sign-in'"); n != 1 {
		t.Errorf("%d audit rows, want 1", n)
	}
	t.Run("and no source is served", func(t *testing.T) {
		for _, path := range sources(t) {
			response, err := http.Get(server.URL + "/" + path)
			if got := read(t, response, err); got.status != http.StatusNotFound {
				t.Errorf("GET /%s answers %d: %.60s", path, got.status, got.body)
			}
		}
		response, err := http.Get(server.URL + "/")
		if got := read(t, response, err); got.status != http.StatusOK || !strings.Contains(got.body, "Weir") {
			t.Errorf("the page answers %d", got.status)
		}
	})
}

// sources are files that must not be had from a deployment: case D10.
func sources(t *testing.T) []string {
	t.Helper()
	paths := []string{"go.mod", "go.sum", "vercel.json", "README.md", "lib/app/app.go", "lib/ratelimit/limiter.go", "scripts/dev/main.go"}
	migrations, err := filepath.Glob("../db/migrations/*.sql")
	if err != nil || len(migrations) == 0 {
		t.Fatalf("migrations: %v, %v", migrations, err)
	}
	for _, path := range migrations {
		paths = append(paths, strings.TrimPrefix(filepath.ToSlash(path), "../"))
	}
	return paths
}

// Case D10: what vercel build publishes is the page.
func TestTheStaticOutputIsThePageAndNothingElse(t *testing.T) {
	output := vercel.Build(t)
	list := func(root string) (files []string) {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				name, _ := filepath.Rel(root, path)
				files = append(files, filepath.ToSlash(name))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(files)
		return files
	}
	published, page := list(filepath.Join(output.Dir, "static")), list("../public")
	if len(page) == 0 || !slices.Equal(published, page) {
		t.Errorf("published %v, the page is %v", published, page)
	}
	functions, err := output.Functions()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(functions)
	if !slices.Equal(functions, app.Routes()) {
		t.Errorf("functions %v, the application's routes are %v", functions, app.Routes())
	}
}

// Row E3; cases C08, D18: what a cold start asks of the database.
func TestAColdStartAsksOnlyForItsDecision(t *testing.T) {
	vercel.Require(t)
	server := hrana.Start(t, hrana.Config{})
	migrated(t, server.URL)
	server.Forget()
	for i := range 5 {
		instance := lambda.Start(t, bootstrap(t, "sign-in"), platform(server.URL))
		response, err := instance.Do(request("POST", "/api/sign-in", fmt.Sprintf("203.0.113.%d", i), `{`))
		if got := read(t, response, err); got.status != http.StatusBadRequest {
			t.Fatalf("status %d: %s\n%s", got.status, got.body, instance.Output())
		}
	}
	var requests int
	for _, r := range server.Requests() {
		statements := r.Statements()
		sweep := len(statements) == 1 && strings.Contains(statements[0].SQL, "DELETE FROM rate_limits") // one in 1,024 decisions
		if len(statements) > 0 && !sweep {
			requests++
		}
		for _, statement := range statements {
			for _, word := range []string{"CREATE", "ALTER", "DROP", "schema_migrations"} {
				if strings.Contains(statement.SQL, word) {
					t.Errorf("a cold start runs %s", statement.SQL)
				}
			}
		}
	}
	if requests != 5 {
		t.Errorf("5 cold starts with one decision each made %d requests, want 5", requests)
	}
}

// Case D16: no setting missing, blank or wrong ends a process; every route answers 503 and the log names the setting.
func TestAMissingSettingIsSaidInTheLogAndAnsweredWith503(t *testing.T) {
	vercel.Require(t)
	const short = "too short to be a secret"
	for _, name := range []string{"TURSO_DATABASE_URL", "RATE_LIMIT_SECRET"} {
		for i, value := range []string{"unset", "", "  ", short} {
			environment := slices.DeleteFunc(platform("http://127.0.0.1:1"), func(s string) bool { return strings.HasPrefix(s, name+"=") })
			if value != "unset" {
				environment = append(environment, name+"="+value)
			}
			routes := app.Routes()
			if i > 0 {
				routes = routes[:1]
			}
			for _, route := range routes {
				instance := lambda.Start(t, bootstrap(t, route), environment)
				for range 2 { // the process lives on
					method := map[bool]string{true: "GET", false: "POST"}[route == "usernames" || route == "partner"]
					response, err := instance.Do(request(method, "/api/"+route, "203.0.113.9", "{}"))
					got := read(t, response, err)
					if got.status != http.StatusServiceUnavailable || got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("Retry-After") == "" {
						t.Fatalf("%s=%q: %s answers %d %v %s", name, value, route, got.status, got.header, got.body)
					}
					if strings.Contains(got.body, name) || strings.Contains(got.body, short) {
						t.Errorf("%s=%q: the client is told %s", name, value, got.body)
					}
				}
				if log := instance.Output(); !strings.Contains(log, name) || strings.Contains(log, short) || strings.Contains(log, secret) {
					t.Errorf("%s=%q: the log should name the setting and not its value: %s", name, value, log)
				}
			}
		}
	}
}

// Cases D11, D12: the whole way of a person through the built functions.
func TestAPersonSignsUpAndInOnTheBuiltFunctions(t *testing.T) {
	vercel.Require(t)
	turso.Each(t, aPersonSignsUpAndIn)
}

func aPersonSignsUpAndIn(t *testing.T, server *turso.Server) {
	db := migrated(t, server.URL)
	filler, err := app.New(db, app.Settings{Platform: true, Secret: []byte(secret)}, app.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := filler.Fill(context.Background(), 3); err != nil {
		t.Fatal(err)
	}
	do := func(route string, r *http.Request, want int) answer {
		t.Helper()
		instance := lambda.Start(t, bootstrap(t, route), platform(server.URL))
		response, err := instance.Do(r)
		got := read(t, response, err)
		if got.status != want {
			t.Fatalf("%s answers %d, want %d: %s\n%s", route, got.status, want, got.body, instance.Output())
		}
		return got
	}
	var lent struct{ Code string }
	got := do("codes", request("POST", "/api/codes", "203.0.113.9", "{}"), http.StatusCreated)
	if err := json.Unmarshal([]byte(got.body), &lent); err != nil || lent.Code == "" {
		t.Fatalf("borrowing answers %s", got.body)
	}
	person := `"username":"Someone","password":"correct horse battery"`
	do("usernames", request("GET", "/api/usernames?name=someone", "203.0.113.9", ""), http.StatusOK)
	do("sign-up", request("POST", "/api/sign-up", "203.0.113.9", `{"code":"`+lent.Code+`",`+person+`}`), http.StatusCreated)
	got = do("sign-in", request("POST", "/api/sign-in", "203.0.113.9", `{`+person+`}`), http.StatusOK)
	if lines := got.header.Values("Set-Cookie"); len(lines) != 2 {
		t.Errorf("cookies %q, want a session's and a device's", lines)
	}
	cookies := (&http.Response{Header: got.header}).Cookies()
	who := request("GET", "/api/sign-in", "203.0.113.9", "")
	leave := request("DELETE", "/api/sign-up", "203.0.113.9", `{"password":"correct horse battery"}`)
	for _, cookie := range cookies {
		who.AddCookie(cookie)
		leave.AddCookie(cookie)
	}
	if got = do("sign-in", who, http.StatusOK); !strings.Contains(got.body, `"username":"someone","role":"member"`) {
		t.Errorf("who am I: %s", got.body)
	}
	do("sign-up", leave, http.StatusNoContent) // row F3: the bridge passes the body of a DELETE on
	do("usernames", request("GET", "/api/usernames?name=someone", "203.0.113.9", ""), http.StatusOK)
	do("demo-sign-in", request("POST", "/api/demo-sign-in", "203.0.113.9", `{"role":"admin"}`), http.StatusOK)
	do("sign-in", request("POST", "/api/sign-in", "", `{`+person+`}`), http.StatusServiceUnavailable) // case A38: nobody's address
}

// Rows E11, E1; case D11: a service in another language asks the built function, with a policy of each algorithm.
func TestAServiceAsksTheBuiltFunction(t *testing.T) {
	vercel.Require(t)
	turso.Each(t, aServiceAsks)
}

func aServiceAsks(t *testing.T, server *turso.Server) {
	migrated(t, server.URL)
	const token, timer = "the-token-of-other-services-in-tests", "the-secret-of-the-timer"
	environment := append(platform(server.URL), "LIMITS_API_TOKEN="+token, "CRON_SECRET="+timer, `RATE_LIMIT_POLICIES=[
		{"name": "fixed", "algorithm": "fixed-window", "limit": 5, "window": "24h"},
		{"name": "sliding", "algorithm": "sliding-window", "limit": 5, "window": "24h"},
		{"name": "log", "algorithm": "sliding-log", "limit": 5, "window": "24h"},
		{"name": "bucket", "algorithm": "token-bucket", "limit": 5, "window": "24h"},
		{"name": "queue", "algorithm": "leaky-bucket", "limit": 1, "window": "24h", "queue": 4}]`)
	do := func(method, path, bearer, body string) answer {
		t.Helper()
		instance := lambda.Start(t, bootstrap(t, "limits"), environment)
		r := request(method, path, "", body)
		r.Header.Set("Authorization", "Bearer "+bearer)
		response, err := instance.Do(r)
		got := read(t, response, err)
		if got.status >= 500 {
			t.Errorf("%s %s answers %d: %s", method, path, got.status, instance.Output())
		}
		if strings.Contains(instance.Output()+got.body, token) || strings.Contains(instance.Output(), "someone") {
			t.Errorf("the log or the answer tells too much: %s", instance.Output())
		}
		return got
	}
	var limits []string
	for _, name := range []string{"fixed", "sliding", "log", "bucket", "queue"} {
		limits = append(limits, `{"policy":"`+name+`","subject":"someone"}`)
	}
	for i := range 6 {
		got := do("POST", "/api/limits", token, `{"limits":[`+strings.Join(limits, ",")+`]}`)
		if want := fmt.Sprintf(`{"allowed":%t,`, i < 5); got.status != http.StatusOK || !strings.HasPrefix(got.body, want) {
			t.Fatalf("decision %d: status %d, %s", i+1, got.status, got.body)
		}
	}
	if got := do("GET", "/api/limits", token, ""); got.status != http.StatusOK || strings.Count(got.body, `"activeKeys":1`) != 5 {
		t.Errorf("the state: %d %s", got.status, got.body)
	}
	if got := do("GET", "/api/limits?op=sweep", timer, ""); got.body != `{"deleted":0,"done":true}` {
		t.Errorf("the sweep: %d %s", got.status, got.body)
	}
	for _, path := range []string{"/api/limits?op=sweep", "/api/limits"} {
		if got := do("GET", path, "wrong", ""); got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") == "" {
			t.Errorf("GET %s with a wrong token: %d %v", path, got.status, got.header)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(vercel.Main(m)) }
