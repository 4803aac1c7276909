package ratehttp_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// A plain server whose clients have 100 requests a minute each. The secret is 32 random bytes.
func Example() {
	mux, secret := http.NewServeMux(), make([]byte, 32)

	perClient := ratelimit.Policy{Name: "api", Algorithm: ratelimit.TokenBucket, Limit: 100, Window: time.Minute, Subject: ratelimit.Address}
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(nil), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limited := ratehttp.Limit(limiter, ratehttp.PerAddress(perClient), ratehttp.Config{})(mux)

	server := httptest.NewServer(limited) // or http.ListenAndServe(":8080", limited)
	defer server.Close()
	response, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
	fmt.Println(response.StatusCode, response.Header.Get("RateLimit-Policy"), response.Header.Get("RateLimit-Remaining"))
	// Output: 404 "api";q=100;w=60 99
}

// Requests of a partner are charged to the key that they carry, a search five units.
func ExampleLimit_apiKey() {
	partner := ratelimit.Policy{
		Name: "partner-free", Algorithm: ratelimit.TokenBucket, Limit: 100, Window: time.Minute, Subject: ratelimit.APIKey,
	}
	charges := func(r *http.Request) ([]ratelimit.Charge, error) {
		key := r.Header.Get("X-Api-Key")
		switch {
		case key == "":
			return nil, &ratehttp.Problem{Status: http.StatusUnauthorized, Detail: "An API key is needed, in the field X-Api-Key."}
		case r.URL.Path == "/search":
			return []ratelimit.Charge{partner.ChargeN(key, 5)}, nil
		}
		return []ratelimit.Charge{partner.Charge(key)}, nil
	}
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(nil), make([]byte, 32), ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	handler := ratehttp.Limit(limiter, charges, ratehttp.Config{})(http.NotFoundHandler())

	for _, key := range []string{"", "key-of-a-partner"} {
		r := httptest.NewRequest("GET", "/search", nil)
		r.Header.Set("X-Api-Key", key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%d, %q left\n", w.Code, w.Header().Get("RateLimit-Remaining"))
	}
	// Output:
	// 401, "" left
	// 404, "95" left
}
