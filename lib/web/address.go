package web

import (
	"net/http"
	"strings"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// clientAddress says where a request came from, in the form that limits count by. The error is errNoAddress.
//
// Off the platform that is the socket's address. On it the socket is the platform's own, and the address is in
// X-Vercel-Forwarded-For, else in X-Real-Ip: the platform sets both and drops what a client sends in them. Every other
// header, X-Forwarded-For first, may say what the client likes. A header with several addresses doesn't say which of them
// is the client, and is passed over. One with a value that isn't an address was not written by the platform, so that
// nothing in the request can be believed: the next header is then not asked.
func clientAddress(r *http.Request, platform bool) (string, error) {
	if !platform {
		address, err := ratehttp.RemoteAddr(r)
		if err != nil {
			return "", errNoAddress
		}
		return address, nil
	}
	for _, name := range []string{"X-Vercel-Forwarded-For", "X-Real-Ip"} {
		values := r.Header.Values(name)
		if len(values) == 1 && strings.TrimSpace(values[0]) != "" && !strings.Contains(values[0], ",") {
			return countedAddress(values[0])
		}
	}
	return "", errNoAddress
}

func countedAddress(text string) (string, error) {
	address, err := ratelimit.CanonicalAddress(text)
	if err != nil {
		return "", errNoAddress
	}
	return address, nil
}
