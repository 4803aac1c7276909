//go:build unix

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/lambda"
	"github.com/weirlimits/weir/lib/testkit/vercel"
)

// helloWorld is a project with the smallest function in Go.
var helloWorld = map[string]string{
	"go.mod": `module example.org/hello

go 1.26.0

toolchain go1.26.8

require github.com/vercel/go-bridge v0.0.0-20221108222652-296f4c6bdb6d
`,
	"vercel.json":       `{"framework": null}`,
	"public/index.html": "hello",
	"api/hello.go": `package handler

import (
	"fmt"
	"net/http"
)

func GreetHandler(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, "hello")
}
`,
}

// start compares the time from a process's start to its first answer, of functions as vercel build makes them.
func (b *bench) start(s *scope) ([]row, error) {
	if b.quick {
		return nil, couldNot("-quick leaves out what takes a build")
	}
	if err := vercel.Available(); err != nil {
		return nil, couldNot(err.Error())
	}
	fmt.Fprintln(b.say, "vercel build, twice …")
	weir, err := vercel.BuildInto(s.TempDir())
	if err != nil {
		return nil, err
	}
	hello, err := vercel.BuildFiles(s.TempDir(), helloWorld)
	if err != nil {
		return nil, err
	}
	usernames, err := weir.Bootstrap("usernames")
	if err != nil {
		return nil, err
	}
	greet, err := hello.Bootstrap("hello")
	if err != nil {
		return nil, err
	}
	db := hrana.Start(s, hrana.Config{})
	open(s, db.URL, 1) // migrates
	environment := []string{"VERCEL=1", "TURSO_DATABASE_URL=" + db.URL, "RATE_LIMIT_SECRET=" + string(secret)}
	client := 0
	someone := func(path string) func() *http.Request {
		return func() *http.Request {
			r := ask(http.MethodGet, path)
			client++
			r.Header.Set("X-Vercel-Forwarded-For", fmt.Sprintf("198.51.100.%d", client%250))
			return r
		}
	}
	contenders := []contender{
		{"first answer of hello world", b.starts(greet, nil, func() *http.Request { return ask(http.MethodGet, "/api/hello") }, http.StatusOK, "hello")},
		{"of usernames, without the database", b.starts(usernames, environment, func() *http.Request {
			return ask(http.MethodDelete, "/api/usernames")
		}, http.StatusMethodNotAllowed, "")},
		{"of usernames, after a decision", b.starts(usernames, environment, someone("/api/usernames?name="), http.StatusUnprocessableEntity, "")},
		{"of usernames, after a decision and a query", b.starts(usernames, environment, someone("/api/usernames?name=nobody"), http.StatusOK, `"free":true`)},
	}
	figures, err := compare(b.ctx, 40, 2, contenders...)
	if err != nil {
		return nil, err
	}
	if asked := len(db.Requests()); asked < 3*len(figures[2].nanos) {
		return nil, fmt.Errorf("the database was asked %d times", asked)
	}
	rows := make([]row, 3)
	for i, what := range []string{
		"a built function, process start to first answer, against hello world",
		"the same, for an answer after a decision over HTTP",
		"the same, for an answer after a decision and a query through libsql-client-go",
	} {
		bar := 0.0
		if i == 0 {
			bar = 1.5
		}
		rows[i] = versus(what, bar, []contender{contenders[i+1], contenders[0]}, []figure{figures[i+1], figures[0]})
		rows[i].times = rows[i].times[:1]
	}
	rows[0].times = append([]named{{contenders[0].name, figures[0]}}, rows[0].times...)
	return rows, nil
}

func ask(method, path string) *http.Request {
	return httptest.NewRequest(method, "https://weir.example.org"+path, nil)
}

// starts is rounds of starting a function, asking it once, and ending it, which doesn't count.
func (b *bench) starts(bootstrap string, environment []string, request func() *http.Request, status int, part string) func(n int) (outcome, error) {
	one := func(s *scope) (int64, error) {
		r := request()
		start := time.Now()
		response, err := lambda.Start(s, bootstrap, environment).Do(r)
		took := time.Since(start).Nanoseconds()
		if err != nil {
			return 0, err
		}
		body, err := io.ReadAll(response.Body)
		if err == nil && (response.StatusCode != status || !strings.Contains(string(body), part)) {
			err = fmt.Errorf("%s %s: %d %s", r.Method, r.URL, response.StatusCode, body)
		}
		return took, err
	}
	return func(n int) (done outcome, err error) {
		for range n {
			took, err := within(b.ctx, one)
			if err != nil {
				return outcome{}, err
			}
			done.nanos = append(done.nanos, took)
		}
		return done, nil
	}
}
