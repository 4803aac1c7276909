package web_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/weirlimits/weir/lib/web"
)

func TestTheOperationThatIsChosenIsTheOneThatIsCarriedOut(t *testing.T) {
	made := func(name string) web.Operation {
		return web.Query(nil, nil, func(*web.Call) (web.Reply, error) { return web.Reply{Body: name}, nil })
	}
	token := func(*web.Call) (web.Token, error) { return web.Token{Setting: "X_TOKEN", Value: bearerToken}, nil }
	guarded := web.Bearer(token, made("guarded"))
	nested := web.Choose(func(*web.Call) web.Operation { return made("nested") })
	handler := web.New(web.Config{}).Handler("/api/x", web.Resource{
		"GET": web.Choose(func(call *web.Call) web.Operation {
			return map[string]web.Operation{"guarded": guarded, "nested": nested}[call.Request.URL.RawQuery]
		}),
	})
	for query, want := range map[string]string{"nested": `"nested"`, "guarded": ""} {
		got := httptest.NewRecorder()
		handler.ServeHTTP(got, httptest.NewRequest("GET", "/api/x?"+query, nil))
		if want == "" && got.Code != http.StatusUnauthorized || want != "" && got.Body.String() != want {
			t.Errorf("%s answers %d: %s", query, got.Code, got.Body)
		}
	}
}

func TestWhoIsToldOfRefusalsIsToldOfNothingElse(t *testing.T) {
	var told [][]string
	violated := []string{"a", "b"}
	handler := web.New(web.Config{Refused: func(policies []string) { told = append(told, policies) }}).Handler("/api/x", web.Resource{
		"GET": web.Query(nil, nil, func(call *web.Call) (web.Reply, error) {
			switch call.Request.URL.RawQuery {
			case "refused":
				return web.Reply{}, &web.Problem{Status: http.StatusTooManyRequests, Detail: "no", ViolatedPolicies: violated}
			case "wrong":
				return web.Reply{}, web.NotFound("no")
			}
			return web.Reply{}, nil
		}),
	})
	for _, query := range []string{"", "wrong", "refused"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/x?"+query, nil))
	}
	if len(told) != 1 || !slices.Equal(told[0], violated) {
		t.Errorf("told was %v", told)
	}
}
