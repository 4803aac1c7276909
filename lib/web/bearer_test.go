package web_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/web"
)

const bearerToken = "a-token-of-tests-0123456789abcdef"

// case B19: the token shows in no answer and no line of the log.
func TestOnlyTheRightTokenIsLetInAndOthersAreNotRead(t *testing.T) {
	for name, c := range map[string]struct {
		token  string
		fields []string
		status int
	}{
		"the token":               {bearerToken, []string{"Bearer " + bearerToken}, 200},
		"the scheme in any case":  {bearerToken, []string{"bearer  " + bearerToken}, 200},
		"none":                    {bearerToken, nil, 401},
		"an empty field":          {bearerToken, []string{""}, 401},
		"the scheme alone":        {bearerToken, []string{"Bearer"}, 401},
		"the token alone":         {bearerToken, []string{bearerToken}, 401},
		"another scheme":          {bearerToken, []string{"Basic " + bearerToken}, 401},
		"a part of it":            {bearerToken, []string{"Bearer " + bearerToken[:len(bearerToken)-1]}, 401},
		"more than it":            {bearerToken, []string{"Bearer " + bearerToken + "x"}, 401},
		"another one":             {bearerToken, []string{"Bearer " + strings.ToUpper(bearerToken)}, 401},
		"the right one and more":  {bearerToken, []string{"Bearer " + bearerToken, "Bearer x"}, 401},
		"a setting missing":       {"", []string{"Bearer " + bearerToken}, 503},
		"nothing where it is one": {"", []string{"Bearer "}, 503},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			ran, read := 0, &reader{strings.NewReader(`{"name":`), 0}
			operation := web.Body(nil, 0, nil, func(*web.Call, struct{}) (web.Reply, error) { ran++; return web.Reply{Body: "in"}, nil })
			handler := web.New(web.Config{Log: slog.New(slog.NewJSONHandler(&log, nil))}).Handler("/api/x", web.Resource{
				"POST": web.Bearer(func(*web.Call) (web.Token, error) { return web.Token{Setting: "X_TOKEN", Value: c.token}, nil }, operation),
			})
			request := httptest.NewRequest("POST", "/api/x", read)
			if c.status == http.StatusOK {
				request = httptest.NewRequest("POST", "/api/x", strings.NewReader(`{}`))
			}
			for _, field := range c.fields {
				request.Header.Add("Authorization", field)
			}
			got := httptest.NewRecorder()
			handler.ServeHTTP(got, request)
			if got.Code != c.status || (ran == 1) != (c.status == 200) || read.bytes != 0 {
				t.Fatalf("status %d, ran %d times, read %d bytes: %s", got.Code, ran, read.bytes, got.Body)
			}
			challenge := got.Header().Get("WWW-Authenticate")
			if (c.status == 401) != strings.HasPrefix(challenge, `Bearer realm="`) || (len(c.fields) > 0 && c.status == 401) != strings.Contains(challenge, "invalid_token") {
				t.Errorf("the challenge is %q", challenge)
			}
			if (c.status == 503) != strings.Contains(log.String(), "X_TOKEN is not set") {
				t.Errorf("the log: %s", log.String())
			}
			if text := got.Body.String() + log.String(); strings.Contains(strings.ToLower(text), bearerToken[:12]) {
				t.Errorf("the token shows: %s", text)
			}
		})
	}
}

// reader counts what is read of it.
type reader struct {
	*strings.Reader
	bytes int
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.bytes += n
	return n, err
}
