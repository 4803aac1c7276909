package app_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/partners"
)

// description is public/openapi.json, and the judge of answers by it. Every answer that a test of this package gets goes
// through it: see world.send.
type description struct {
	root map[string]any

	mu       sync.Mutex
	compiler *jsonschema.Compiler
}

// openapi is read once: it doesn't change.
var openapi = sync.OnceValues(func() (*description, error) {
	text, err := os.ReadFile(filepath.Join("..", "..", "public", "openapi.json"))
	if err != nil {
		return nil, err
	}
	return parseDescription(string(text))
})

func parseDescription(text string) (*description, error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	d := &description{compiler: jsonschema.NewCompiler()}
	d.root, _ = document.(map[string]any)
	d.compiler.AssertFormat()
	return d, d.compiler.AddResource("openapi.json", document)
}

// find gives the object at a path, references followed on the way, and the JSON pointer of where it really is.
func (d *description) find(path ...string) (object map[string]any, pointer string) {
	object = d.root
	for _, name := range path {
		object, _ = object[name].(map[string]any)
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		if target, refers := object["$ref"].(string); refers {
			object, pointer = d.find(strings.Split(strings.TrimPrefix(target, "#/"), "/")...)
		}
	}
	return object, pointer
}

// check holds a value against the schema at a pointer.
func (d *description) check(pointer string, value any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	schema, err := d.compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

func (d *description) checkJSON(pointer, text string) error {
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return d.check(pointer, value)
}

// judge says what in an answer is not as described: its status, its content type, a field that is missing, wrong or not
// described, its body; and the body of a request that was done.
func (d *description) judge(method, route, sent string, got reply) (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s %s answers %d: ", method, route, got.StatusCode)+fmt.Sprintf(format, args...))
	}
	place := []string{"paths", "/api/" + route, strings.ToLower(method), "responses", fmt.Sprint(got.StatusCode)}
	if operation, _ := d.find(place[:3]...); operation == nil {
		if got.StatusCode != http.StatusMethodNotAllowed {
			fault("the method is not described")
			return faults
		}
		place = []string{"components", "responses", "MethodNotAllowed"}
	}
	response, at := d.find(place...)
	if response == nil {
		fault("the status is not described")
		return faults
	}

	described, _ := d.find("components", "headers")
	for name := range described {
		header, where := d.find(append(place, "headers", name)...)
		values := got.Header.Values(name)
		limits := strings.HasPrefix(name, "RateLimit") // there where they are described as such, but while the store is down
		switch {
		case header == nil && len(values) > 0 && (limits || described[name].(map[string]any)["required"] == true):
			fault("the field %s is not described", name)
		case (header["required"] == true || limits && !got.degraded && reflect.DeepEqual(header, described[name])) && len(values) == 0:
			fault("the field %s is missing", name)
		}
		for _, value := range values {
			if header != nil {
				if err := d.check(where+"/schema", value); err != nil {
					fault("the field %s: %v", name, err)
				}
			}
		}
	}

	content, _ := response["content"].(map[string]any)
	kind := got.Header.Get("Content-Type")
	switch {
	case content[kind] == nil && (kind != "" || len(content) > 0):
		fault("the content type %q is not described", kind)
	case kind == "" && got.body != "":
		fault("a body is not described")
	case kind != "" && method != http.MethodHead:
		if err := d.checkJSON(at+"/content/"+strings.ReplaceAll(kind, "/", "~1")+"/schema", got.body); err != nil {
			fault("%v: %s", err, got.body)
		}
	}

	_, input := d.find(append(place[:3:3], "requestBody", "content", "application/json", "schema")...)
	if got.StatusCode < 300 && sent != "" && place[0] == "paths" {
		if err := d.checkJSON(input, sent); err != nil {
			fault("although its body is not as described: %v", err)
		}
	}
	return faults
}

// judge fails a test whose answer is not as described.
func (w *world) judge(method, path, sent string, got reply) {
	w.t.Helper()
	if method == http.MethodOptions {
		return
	}
	described, err := openapi()
	if err != nil {
		w.t.Fatal(err)
	}
	route, _, _ := strings.Cut(strings.TrimPrefix(path, "/api/"), "?")
	for _, fault := range described.judge(method, route, sent, got) {
		w.t.Error("public/openapi.json: " + fault)
	}
}

func TestEveryRouteAndMethodIsDescribedAndNothingElse(t *testing.T) {
	described, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	paths, _ := described.find("paths")
	var routes []string
	for path := range paths {
		routes = append(routes, strings.TrimPrefix(path, "/api/"))
	}
	slices.Sort(routes)
	if !slices.Equal(routes, app.Routes()) {
		t.Fatalf("described are %v, there are %v", routes, app.Routes())
	}
	operations := map[string]bool{}
	for _, route := range routes {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "TRACE"} {
			operation, _ := described.find("paths", "/api/"+route, strings.ToLower(method))
			there := w.send("203.0.113.9", method, "/api/"+route, "").StatusCode != http.StatusMethodNotAllowed
			if there != (operation != nil) {
				t.Errorf("%s %s is there: %t, and described: %t", method, route, there, operation != nil)
			}
			if operation == nil {
				continue
			}
			if id := fmt.Sprint(operation["operationId"]); id == "" || operations[id] {
				t.Errorf("%s %s has the operationId %q of another", method, route, id)
			} else {
				operations[id] = true
			}
			for _, alternative := range list(operation["security"]) {
				for name := range alternative.(map[string]any) {
					if scheme, _ := described.find("components", "securitySchemes", name); scheme == nil {
						t.Errorf("%s %s: there is no security scheme %s", method, route, name)
					}
				}
			}
		}
	}
	schemas, _ := described.find("components", "schemas")
	for name := range schemas {
		described.mu.Lock()
		_, err := described.compiler.Compile("openapi.json#/components/schemas/" + name)
		described.mu.Unlock()
		if err != nil {
			t.Errorf("the schema %s: %v", name, err)
		}
	}
	if info, _ := described.find("info"); info["version"] != app.Version {
		t.Errorf("it describes version %v, this is %s", info["version"], app.Version)
	}
}

func list(value any) []any {
	all, _ := value.([]any)
	return all
}

// Row E11: each status that is described is really got, but for 500; world.send holds the answers against the description.
func TestEveryDescribedStatusIsAnsweredAsDescribed(t *testing.T) {
	described, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, withTokens)
	w.member("someone")
	code := func() string {
		return w.send("203.0.113.201", "POST", "/api/codes", "{}").field(t, "code")
	}
	applicant := func(code, name, password string) string {
		return fmt.Sprintf(`{"code":%q,"username":%q,"password":%q}`, code, name, password)
	}
	person := `{"username":"someone","password":"` + rightPassword + `"}`
	cookie := w.signIn("203.0.113.202", "someone", rightPassword).Cookies()[0]
	signedIn := func(r *http.Request) { r.AddCookie(cookie) }
	admin := w.demo("admin")
	partner, _ := w.partner(partners.Free)
	w.member("leaving")
	leavers := w.signIn("203.0.113.202", "leaving", rightPassword).Cookies()[0]
	leaving := func(r *http.Request) { r.AddCookie(leavers) }
	foreign := func(r *http.Request) { r.Header.Set("Origin", "https://elsewhere.example.org") }
	large := `{"x":"` + strings.Repeat("x", 64<<10) + `"}`
	limit := `{"limits":[{"policy":"sign-in","subject":"192.0.2.1"}]}`
	cron := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) }
	large500 := `{"x":"` + strings.Repeat("x", 500_000) + `"}`

	oneTime := func(phone string) string {
		expect(t, w.send("203.0.113.201", "POST", "/api/otp", `{"phone":"`+phone+`"}`), http.StatusAccepted)
		return fmt.Sprintf(`{"phone":%q,"code":%q}`, phone, w.newestCode())
	}

	seen := map[string]bool{}
	send := func(status int, method, path, body string, change ...func(*http.Request)) {
		t.Helper()
		got := w.send(fmt.Sprintf("198.51.100.%d", len(seen)+1), method, "/api/"+path, body, change...)
		expect(t, got, status)
		route, _, _ := strings.Cut(path, "?")
		seen[fmt.Sprint(method, " ", route, " ", status)] = true
	}
	for _, status := range []struct {
		status             int
		method, path, body string
		change             func(*http.Request)
	}{
		{200, "POST", "sign-in", person, nil},
		{400, "POST", "sign-in", `{`, nil},
		{401, "POST", "sign-in", `{"username":"someone","password":"wrong password"}`, nil},
		{403, "POST", "sign-in", person, foreign},
		{413, "POST", "sign-in", large, nil},
		{200, "GET", "sign-in", "", signedIn},
		{401, "GET", "sign-in", "", nil},
		{204, "DELETE", "sign-in", "", nil},
		{400, "DELETE", "sign-in?everywhere=maybe", "", signedIn},
		{401, "DELETE", "sign-in?everywhere=1", "", nil},
		{403, "DELETE", "sign-in", "", foreign},
		{204, "PATCH", "sign-in", change(rightPassword, rightPassword), signedIn},
		{202, "PUT", "sign-in", `{"username":"someone"}`, nil},
		{400, "PUT", "sign-in", `{"username":" "}`, nil},
		{403, "PUT", "sign-in", `{"username":"someone"}`, foreign},
		{413, "PUT", "sign-in", large, nil},
		{401, "PATCH", "sign-in", `{"token":"` + someToken + `","newPassword":"` + rightPassword + `"}`, nil},
		{400, "PATCH", "sign-in", `{"token":"` + someToken + `","currentPassword":"x","newPassword":"` + rightPassword + `"}`, nil},
		{401, "PATCH", "sign-in", change(rightPassword, rightPassword), nil},
		{403, "PATCH", "sign-in", change(rightPassword, rightPassword), foreign},
		{413, "PATCH", "sign-in", large, signedIn},
		{422, "PATCH", "sign-in", change(rightPassword, "short"), signedIn},
		{204, "DELETE", "sign-up", `{"password":"` + rightPassword + `"}`, leaving},
		{400, "DELETE", "sign-up", `{}`, signedIn},
		{401, "DELETE", "sign-up", `{"password":"wrong password"}`, signedIn},
		{403, "DELETE", "sign-up", `{}`, foreign},
		{413, "DELETE", "sign-up", large, signedIn},
		{201, "POST", "sign-up", applicant(code(), "another", rightPassword), nil},
		{400, "POST", "sign-up", `[]`, nil},
		{403, "POST", "sign-up", `{}`, foreign},
		{409, "POST", "sign-up", applicant(code(), "someone", rightPassword), nil},
		{413, "POST", "sign-up", large, nil},
		{422, "POST", "sign-up", applicant(code(), "third", "short"), nil},
		{200, "POST", "demo-sign-in", `{"role":"admin"}`, nil},
		{400, "POST", "demo-sign-in", `{"role":1}`, nil},
		{403, "POST", "demo-sign-in", `{}`, foreign},
		{413, "POST", "demo-sign-in", large, nil},
		{422, "POST", "demo-sign-in", `{"role":"root"}`, nil},
		{201, "POST", "codes", `{}`, nil},
		{400, "POST", "codes", `{"x":1}`, nil},
		{403, "POST", "codes", `{}`, foreign},
		{413, "POST", "codes", large, nil},
		{200, "GET", "codes?code=" + code(), "", nil},
		{400, "GET", "codes?code=a&code=b", "", nil},
		{404, "GET", "codes?code=WEIR-0000-0000-0000", "", nil},
		{200, "GET", "usernames?name=Someone", "", nil},
		{400, "GET", "usernames?name=%zz", "", nil},
		{422, "GET", "usernames?name=a%20b", "", nil},
		{200, "POST", "sandbox-sql", `{"sql":"SELECT 1, 'x', NULL, X'00'"}`, admin},
		{400, "POST", "sandbox-sql", `{`, admin},
		{401, "POST", "sandbox-sql", `{}`, nil},
		{403, "POST", "sandbox-sql", `{}`, signedIn},
		{408, "POST", "sandbox-sql", endless, admin},
		{413, "POST", "sandbox-sql", large, admin},
		{422, "POST", "sandbox-sql", `{"sql":"SELEC"}`, admin},
		{200, "POST", "limits", limit, byToken},
		{400, "POST", "limits", `{"limits":[]}`, byToken},
		{401, "POST", "limits", limit, nil},
		{403, "POST", "limits", limit, foreign},
		{413, "POST", "limits", large, byToken},
		{200, "GET", "limits", "", byToken},
		{200, "GET", "limits?op=sweep", "", cron},
		{200, "GET", "limits?view=refusals", "", admin},
		{200, "GET", "limits?view=audit", "", byToken},
		{200, "GET", "limits?view=alerts", "", admin},
		{400, "GET", "limits?op=drop", "", byToken},
		{400, "GET", "limits?view=x", "", admin},
		{401, "GET", "limits", "", nil},
		{401, "GET", "limits?view=audit", "", nil},
		{403, "GET", "limits?view=audit", "", signedIn},
		{201, "POST", "ai-log", someEntry, admin},
		{400, "POST", "ai-log", `[]`, signedIn},
		{401, "POST", "ai-log", someEntry, nil},
		{403, "POST", "ai-log", someEntry, foreign},
		{413, "POST", "ai-log", large500, signedIn},
		{422, "POST", "ai-log", `{}`, signedIn},
		{200, "GET", "ai-log", "", signedIn},
		{200, "GET", "ai-log?all=1&limit=1", "", admin},
		{400, "GET", "ai-log?limit=0", "", signedIn},
		{401, "GET", "ai-log", "", nil},
		{403, "GET", "ai-log?all=1", "", signedIn},
		{201, "POST", "evaluations", `{"entry":1,"score":4,"note":"good"}`, admin},
		{400, "POST", "evaluations", `{"entry":1,"score":"4"}`, admin},
		{401, "POST", "evaluations", `{"entry":1,"score":4}`, nil},
		{403, "POST", "evaluations", `{"entry":1,"score":4}`, signedIn},
		{404, "POST", "evaluations", `{"entry":2,"score":4}`, admin},
		{413, "POST", "evaluations", large, admin},
		{422, "POST", "evaluations", `{"entry":1,"score":4.5}`, admin},
		{200, "GET", "evaluations", "", admin},
		{401, "GET", "evaluations", "", nil},
		{403, "GET", "evaluations", "", signedIn},
		{200, "GET", "partner?q=question", "", partner},
		{400, "GET", "partner?cursor=x", "", partner},
		{401, "GET", "partner", "", nil},
		{202, "POST", "otp", `{"phone":"+12025550123"}`, nil},
		{400, "POST", "otp", `{"phone":12025550123}`, nil},
		{403, "POST", "otp", `{}`, foreign},
		{413, "POST", "otp", large, nil},
		{422, "POST", "otp", `{"phone":"2025550123"}`, nil},
		{200, "PUT", "otp", oneTime("+12025550124"), nil},
		{400, "PUT", "otp", `{"phone":"+12025550123","code":""}`, nil},
		{401, "PUT", "otp", `{"phone":"+12025550199","code":"000000"}`, nil},
		{403, "PUT", "otp", `{}`, foreign},
		{413, "PUT", "otp", large, nil},
		{422, "PUT", "otp", `{"phone":"2025550123","code":"000000"}`, nil},
		{202, "POST", "invites", `{"email":"someone@example.org"}`, signedIn},
		{400, "POST", "invites", `[]`, signedIn},
		{401, "POST", "invites", `{"email":"someone@example.org"}`, nil},
		{403, "POST", "invites", `{"email":"someone@example.org"}`, foreign},
		{413, "POST", "invites", large, signedIn},
		{422, "POST", "invites", `{"email":"someone"}`, signedIn},
	} {
		if status.change == nil {
			status.change = func(*http.Request) {}
		}
		send(status.status, status.method, status.path, status.body, status.change)
	}
	ban := `{"mode":"ban","until":"2100-01-01T00:00:00Z","limits":[{"policy":"edge","subject":"203.0.113.79"}]}`
	expect(t, w.limits(ban), 200)
	expect(t, w.send("203.0.113.79", "GET", "/api/limits?view=audit", "", admin), 429)
	seen["GET limits 429"] = true
	for _, row := range byAddress {
		for range row.limit {
			w.send("203.0.113.77", row.method, "/api/"+row.route+row.query, row.body)
		}
		if got := w.send("203.0.113.77", row.method, "/api/"+row.route+row.query, row.body); got.StatusCode == http.StatusTooManyRequests {
			seen[row.method+" "+row.route+" 429"] = true
		}
	}
	for _, row := range byMember {
		for range row.limit {
			w.send("203.0.113.78", row.method, "/api/"+row.route+row.query, row.body, admin)
		}
		if got := w.send("203.0.113.78", row.method, "/api/"+row.route+row.query, row.body, admin); got.StatusCode == http.StatusTooManyRequests {
			seen[row.method+" "+row.route+" 429"] = true
		}
	}
	for range 100 {
		w.read("", partner)
	}
	send(429, "GET", "partner", "", partner)
	if _, err := w.db.Exec("UPDATE invite_codes SET used_micros = 1"); err != nil {
		t.Fatal(err)
	}
	send(409, "POST", "codes", `{}`)
	off := newWorld(t, func(s *app.Settings) { s.Demo = false })
	expect(t, off.send("198.51.100.1", "POST", "/api/demo-sign-in", `{"role":"member"}`), 404)
	seen["POST demo-sign-in 404"] = true
	if _, err := w.db.Exec("DROP TABLE rate_limits"); err != nil {
		t.Fatal(err)
	}
	for _, row := range byAddress {
		send(503, row.method, row.route+row.query, row.body)
	}
	for _, row := range byMember {
		send(503, row.method, row.route+row.query, row.body, admin)
	}
	w.read("?q=question", partner) // of an instance's share of 7 units this leaves too few for another
	send(503, "GET", "partner?q=question", "", partner)
	send(503, "POST", "limits", limit, byToken)
	send(503, "GET", "limits", "", byToken)
	send(503, "GET", "limits?op=sweep", "", cron)

	paths, _ := described.find("paths")
	for path := range paths {
		methods, _ := described.find("paths", path)
		for method := range methods {
			responses, _ := described.find("paths", path, method, "responses")
			for status := range maps.Keys(responses) {
				name := strings.ToUpper(method) + " " + strings.TrimPrefix(path, "/api/") + " " + status
				if !seen[name] && status != "500" {
					t.Errorf("nothing here gets %s, which is described", name)
				}
				delete(seen, name)
			}
		}
	}
	if len(seen) > 0 { // the judge would have said so
		t.Errorf("not described: %v", seen)
	}
}

// Issue 10.22: a link is for every answer that has the described form, so what it takes from the
// body has to be required there.
func TestEveryLinkOfTheDescriptionCanBeFollowed(t *testing.T) {
	d, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	unfollowable := func(d *description) (faults []string) {
		paths, _ := d.find("paths")
		for path := range paths {
			methods, _ := d.find("paths", path)
			for method := range methods {
				responses, _ := d.find("paths", path, method, "responses")
				for status := range responses {
					response, _ := d.find("paths", path, method, "responses", status)
					links, _ := response["links"].(map[string]any)
					schema, _ := d.find("paths", path, method, "responses", status, "content", "application/json", "schema")
					text, err := json.Marshal(links)
					if err != nil {
						t.Fatal(err)
					}
					for _, part := range strings.Split(string(text), "$response.body#/")[1:] {
						name, _, _ := strings.Cut(part, `"`)
						if !slices.Contains(list(schema["required"]), any(name)) {
							faults = append(faults, fmt.Sprintf("%s %s %s: %s may be missing", method, path, status, name))
						}
					}
				}
			}
		}
		return faults
	}
	if faults := unfollowable(d); len(faults) > 0 {
		t.Errorf("links that can't be followed: %v", faults)
	}
	planted, err := parseDescription(`{"paths": {"/x": {"post": {"responses": {"200": {
		"links": {"a": {"parameters": {"b": "$response.body#/b", "c": "$response.body#/c"}}},
		"content": {"application/json": {"schema": {"required": ["b"]}}}}}}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	if faults := unfollowable(planted); len(faults) != 1 || !strings.Contains(faults[0], "c may be missing") {
		t.Errorf("the planted link is not found: %v", faults)
	}
}

// Which characters are blanks differs from one reader of patterns to the next, so the pattern names them. Beyond what is
// tried here there are none, and none that folds into ASCII.
func TestAUsernameIsDescribedAsItIsRead(t *testing.T) {
	described, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	for r := range rune(0x3100) {
		for _, text := range []string{string(r) + "name", "na" + string(r) + "me", "name" + string(r)} {
			_, refused := accounts.ParseName(text)
			if fault := described.check("/components/schemas/Username", text); (refused == nil) != (fault == nil) {
				t.Errorf("%+q is refused: %v; as described: %v", text, refused, fault)
			}
		}
	}
}

func TestTheNameOfASignInIsTakenWhereItIsAsDescribed(t *testing.T) {
	described, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for name, status := range map[string]int{
		strings.Repeat("x", 256):          http.StatusUnauthorized,
		strings.Repeat("x", 257):          http.StatusBadRequest,
		strings.Repeat("\u023a", 256):     http.StatusUnauthorized, // longer in lower case
		strings.Repeat("\U00010400", 256): http.StatusUnauthorized,
		strings.Repeat("\u00fc", 257):     http.StatusBadRequest,
		" \u00a0\u0085\u3000":             http.StatusBadRequest,
		"":                                http.StatusBadRequest,
		" \ufeff":                         http.StatusUnauthorized,
	} {
		body, err := json.Marshal(map[string]string{"username": name, "password": "wrong password"})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, w.send("203.0.113.9", "POST", "/api/sign-in", string(body)), status)
		if fault := described.check("/components/schemas/Credentials/properties/username", name); (fault == nil) != (status == http.StatusUnauthorized) {
			t.Errorf("%+q is answered %d; as described: %v", name, status, fault)
		}
	}
}

// The judge is shown to find each kind of fault.
func TestAnAnswerThatIsNotAsDescribedIsFound(t *testing.T) {
	described, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, withTokens)
	good := w.send("203.0.113.9", "POST", "/api/codes", "{}")
	refused := w.send("203.0.113.9", "POST", "/api/codes", "[]")
	decided := w.send("203.0.113.9", "POST", "/api/limits", `{"limits":[{"policy":"sign-in","subject":"192.0.2.1"}]}`, byToken)
	wrong := func(want, method, route, sent string, got reply, change func(*reply)) {
		t.Helper()
		copied := *got.Response
		copied.Header = got.Header.Clone()
		got.Response = &copied
		if faults := described.judge(method, route, sent, got); len(faults) > 0 && want != "although" {
			t.Fatalf("as it is: %v", faults)
		}
		change(&got)
		if faults := strings.Join(described.judge(method, route, sent, got), "\n"); !strings.Contains(faults, want) {
			t.Errorf("faults %q, want one with %q", faults, want)
		}
	}
	field := func(name string, value any) func(*reply) {
		return func(got *reply) {
			fields := got.json(t)
			fields[name] = value
			if value == nil {
				delete(fields, name)
			}
			text, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			got.body = string(text)
		}
	}
	wrong("status is not described", "POST", "codes", "{}", good, func(got *reply) { got.StatusCode = 202 })
	wrong("content type", "POST", "codes", "{}", good, func(got *reply) { got.Header.Set("Content-Type", "text/html") })
	wrong("content type", "POST", "codes", "{}", refused, func(got *reply) { got.Header.Set("Content-Type", "application/json") })
	wrong("RateLimit-Reset is missing", "POST", "codes", "{}", good, func(got *reply) { got.Header.Del("RateLimit-Reset") })
	wrong("RateLimit", "POST", "codes", "{}", good, func(got *reply) { got.Header.Set("RateLimit", `borrow-code;r=3`) })
	wrong("Retry-After is not described", "POST", "codes", "{}", good, func(got *reply) { got.Header.Set("Retry-After", "1") })
	wrong("missing property", "POST", "codes", "{}", good, field("expiresAt", nil))
	wrong("not valid date-time", "POST", "codes", "{}", good, field("expiresAt", "tomorrow"))
	wrong("additional properties", "POST", "codes", "{}", good, field("more", 1))
	wrong("additional properties", "POST", "codes", "{}", refused, field("sql", "SELECT"))
	wrong("got string, want boolean", "POST", "limits", "", decided, field("allowed", "yes"))
	wrong("not described", "PUT", "codes", "{}", reply{Response: &http.Response{StatusCode: 405, Header: http.Header{"Allow": {"GET"}, "Content-Type": {"application/problem+json"}}},
		body: `{"type":"about:blank","title":"x","status":405,"detail":"x"}`}, func(got *reply) { got.StatusCode = 200 })
	wrong("although", "POST", "codes", `{"x":1}`, good, func(*reply) {})
}
