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
	fields := r.Header.Values("Authorization")
	problem := Unauthorized("This address is for services: it takes a token that its operator gave out.")
	problem.Challenge = `Bearer realm="Weir"`
	if len(fields) == 0 {
		return problem
	}
	scheme, given, _ := strings.Cut(fields[0], " ")
	// Hashes have one length, so that the time tells nothing of the token's.
	want, got := sha256.Sum256([]byte(t.Value)), sha256.Sum256([]byte(strings.TrimLeft(given, " ")))
	if len(fields) != 1 || !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
		problem.Challenge += `, error="invalid_token"`
		return problem
	}
	return nil
}
