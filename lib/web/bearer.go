package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"
)

// Token is a secret that a caller shows in the field Authorization (RFC 6750).
type Token struct {
	// Setting is the name of the setting that holds it, for the log.
	Setting string
	// Value is the secret itself. Empty means that the setting is missing: then nobody is let in.
	Value string
}

// Bearer lets only those requests through that carry the token that is asked for. Others cost nobody anything and learn
// nothing of the operation: they are answered 401, or 503 where the setting is missing, whatever their input is. An
// error of ask refuses the request too.
func Bearer(ask func(*Call) (Token, error), operation Operation) Operation {
	operation.check = func(call *Call) error {
		token, err := ask(call)
		if err != nil {
			return err
		}
		return token.check(call.Request)
	}
	return operation
}

func (t Token) check(r *http.Request) error {
	if t.Value == "" {
		return &unconfigured{errors.New(t.Setting + " is not set")}
	}
	// Hashes have one length, so that the time tells nothing of the token's.
	want, got := sha256.Sum256([]byte(t.Value)), sha256.Sum256([]byte(bearer(r)))
	if subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
		return notShown(r, "This address is for services: it takes a token that its operator gave out.")
	}
	return nil
}

// bearer reads the token that a request shows, or "" when it shows none. Two fields are none: a guess which one was meant could
// be wrong.
func bearer(r *http.Request) string {
	fields := r.Header.Values("Authorization")
	if len(fields) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(fields[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimLeft(token, " ")
}

// notShown is the 401 of a token that is missing or not good.
func notShown(r *http.Request, detail string) *Problem {
	problem := Unauthorized(detail)
	problem.Challenge = `Bearer realm="Weir"`
	if len(r.Header.Values("Authorization")) > 0 {
		problem.Challenge += `, error="invalid_token"`
	}
	return problem
}

// Bearer gives the token that the request shows in the field Authorization (RFC 6750), or "" when it shows none.
func (c *Call) Bearer() string {
	return bearer(c.Request)
}

// InvalidToken is the 401 of a request whose token is missing or not good, with the challenge of RFC 6750, section 3.
func (c *Call) InvalidToken(detail string) *Problem {
	return notShown(c.Request, detail)
}
