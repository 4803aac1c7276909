package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxBodyBytes bounds a body unless its operation says otherwise. Every input of the API is a few short fields.
	MaxBodyBytes = 64 << 10
	// maxDrainBytes is how much of a body that is too large is read and dropped before its answer:
	// a client that is still sending when the connection closes may never see it. The platform
	// passes on 4.5 MB at most.
	maxDrainBytes = 5 << 20
	// maxFieldBytes bounds the name of a field that an answer repeats.
	maxFieldBytes = 64
)

// readBody reads a body of at most maxBytes.
func readBody(body io.Reader, maxBytes int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxBytes+1))
	if err != nil {
		return nil, BadRequest("", "The body of the request did not arrive completely.")
	}
	if int64(len(data)) > maxBytes {
		io.CopyN(io.Discard, body, maxDrainBytes) // an error means that there was less
		return nil, &Problem{
			Status: http.StatusRequestEntityTooLarge,
			Detail: fmt.Sprintf("The body of the request is larger than %d bytes.", maxBytes),
		}
	}
	return data, nil
}

// decode reads a JSON object strictly: the package refuses duplicate names, invalid UTF-8 and trailing data by itself. It
// would read null as a field that is left out; no input takes it for a value, so it is of the wrong kind.
func decode(data []byte, out any) error {
	if jsontext.Value(data).Kind() != '{' {
		return BadRequest("", "The body of the request must be a JSON object.")
	}
	err := json.Unmarshal(data, out, json.RejectUnknownMembers(true))
	if err == nil {
		if pointer, found := findNull(data); found {
			return fieldFault(pointer, wrongKind)
		}
		return nil
	}
	var (
		semantic  *json.SemanticError
		syntactic *jsontext.SyntacticError
		pointer   jsontext.Pointer
		detail    = "The body of the request is not valid JSON."
	)
	switch {
	case errors.As(err, &syntactic) && errors.Is(err, jsontext.ErrDuplicateName):
		pointer, detail = syntactic.JSONPointer, "The body has this field twice."
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		pointer, detail = semantic.JSONPointer, "The body has a field that this request does not know."
	case errors.As(err, &semantic):
		pointer, detail = semantic.JSONPointer, wrongKind
	}
	return fieldFault(pointer, detail)
}

const wrongKind = "The value of this field is of the wrong kind."

// fieldFault names the field at pointer, unless its name is too long to be repeated.
func fieldFault(pointer jsontext.Pointer, detail string) error {
	field := path(pointer)
	if len(field) > maxFieldBytes {
		field = ""
	}
	return BadRequest(field, detail)
}

// findNull tells where the first null of a valid text is.
func findNull(data []byte) (at jsontext.Pointer, found bool) {
	if !bytes.Contains(data, []byte("null")) {
		return "", false
	}
	tokens := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		token, err := tokens.ReadToken()
		switch {
		case err != nil: // the end
			return "", false
		case token.Kind() == 'n':
			return tokens.StackPointer(), true
		}
	}
}

// path writes where a field is: "password", or "limits[2].cost" deeper inside.
func path(pointer jsontext.Pointer) string {
	var out strings.Builder
	for token := range pointer.Tokens() {
		_, err := strconv.ParseUint(token, 10, 32)
		switch {
		case out.Len() == 0:
			out.WriteString(token)
		case err == nil:
			out.WriteString("[" + token + "]")
		default:
			out.WriteString("." + token)
		}
	}
	return out.String()
}

// encode never fails on text: what isn't UTF-8 becomes the replacement character. Nothing is escaped for HTML, because
// the answer says that it is JSON and forbids guessing.
func encode(value any) ([]byte, error) {
	return json.Marshal(value,
		jsontext.AllowInvalidUTF8(true),
		json.Deterministic(true),
		json.WithMarshalers(json.MarshalToFunc(func(out *jsontext.Encoder, t time.Time) error {
			return out.WriteToken(jsontext.String(t.UTC().Format(time.RFC3339Nano)))
		})))
}
