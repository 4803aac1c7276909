package web

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

type person struct {
	Name string   `json:"name"`
	Age  int      `json:"age,omitzero"`
	Tags []string `json:"tags,omitempty"`

	Friends []person `json:"friends,omitempty"`
}

func TestABodyIsReadStrictly(t *testing.T) {
	tests := []struct {
		name, body string
		good       bool
		field      string
	}{
		{"an object that fits", `{"name":"a","age":3}`, true, ""},
		{"white space around it", " \n{\"name\":\"a\"}\t\n", true, ""},
		{"an empty object", `{}`, true, ""},
		{"nothing", ``, false, ""},
		{"only white space", "  ", false, ""},
		{"null", `null`, false, ""},
		{"an array", `[]`, false, ""},
		{"half an object", `{`, false, ""},
		{"an unknown field", `{"name":"a","role":"admin"}`, false, "role"},
		{"a field in other case", `{"Name":"a"}`, false, "Name"},
		{"a field twice", `{"name":"a","name":"b"}`, false, "name"},
		{"a field twice by escapes", `{"name":"a","n\u0061me":"b"}`, false, "name"},
		{"a number for a string", `{"name":7}`, false, "name"},
		{"null for a string", `{"name":null}`, false, "name"},
		{"null for a list", `{"name":"a","tags":null}`, false, "tags"},
		{"null in a list", `{"friends":[{"name":"b"},{"tags":["null",null]}]}`, false, "friends[1].tags[1]"},
		{"the word null in a string", `{"name":"null","tags":["null"]}`, true, ""},
		{"a fraction for a whole number", `{"age":1.5}`, false, "age"},
		{"a number too large", `{"age":99999999999999999999}`, false, "age"},
		{"a second object", `{"name":"a"}{}`, false, ""},
		{"a word behind it", `{"name":"a"} x`, false, ""},
		{"invalid UTF-8", "{\"name\":\"\xff\"}", false, ""},
		{"half a surrogate pair", `{"name":"\ud800"}`, false, ""},
		{"a comment", `{/**/"name":"a"}`, false, ""},
		{"a long unknown field", `{"` + strings.Repeat("x", 65) + `":1}`, false, ""},
		{"a form", `name=a&age=3`, false, ""},
		{"a field in a list", `{"friends":[{"name":"b"},{"age":"c"}]}`, false, "friends[1].age"},
		{"an unknown field in a list", `{"friends":[{"10":1}]}`, false, "friends[0][10]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got person
			err := decode([]byte(test.body), &got)
			var problem *Problem
			switch {
			case test.good && err != nil:
				t.Fatalf("refused: %v", err)
			case !test.good && !errors.As(err, &problem):
				t.Fatalf("accepted as %+v, error %v", got, err)
			case !test.good && (problem.Status != http.StatusBadRequest || problem.Field != test.field):
				t.Errorf("status %d, field %q, want 400 and %q", problem.Status, problem.Field, test.field)
			case !test.good && (strings.Contains(problem.Detail, "web.") || strings.Contains(problem.Detail, "json:")):
				t.Errorf("the detail speaks of Go: %q", problem.Detail)
			}
		})
	}
}

func TestABodyThatBreaksOffIsTheClientsFault(t *testing.T) {
	_, err := readBody(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(`{"name":"a"}`))), 100)
	var problem *Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusBadRequest {
		t.Fatalf("error %v, want a 400", err)
	}
}

func TestABodyOfJustTheBoundIsRead(t *testing.T) {
	data, err := readBody(strings.NewReader("12345678"), 8)
	if err != nil || string(data) != "12345678" {
		t.Fatalf("read %q, %v", data, err)
	}
}

func TestAnEndlessBodyIsNotReadToItsEnd(t *testing.T) { // case D13
	endless := &countingReader{}
	_, err := readBody(endless, 8)
	var problem *Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusRequestEntityTooLarge {
		t.Fatalf("error %v, want a 413", err)
	}
	if endless.read > maxDrainBytes+9 {
		t.Errorf("%d bytes were read", endless.read)
	}
}

type countingReader struct{ read int64 }

func (c *countingReader) Read(p []byte) (int, error) {
	c.read += int64(len(p))
	return len(p), nil
}

func TestAnAnswerIsPlainJSON(t *testing.T) {
	berlin := time.FixedZone("", 2*60*60)
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{"nothing is escaped for HTML", map[string]string{"a": "<b>&'"}, `{"a":"<b>&'"}`},
		{"times are in UTC", map[string]time.Time{"at": time.Date(2026, 7, 1, 2, 0, 0, 5e8, berlin)}, `{"at":"2026-07-01T00:00:00.5Z"}`},
		{"no elements are an empty list", map[string][]string{"items": nil}, `{"items":[]}`},
		{"text that isn't UTF-8 is mended", []string{"\xff"}, `["` + "\uFFFD" + `"]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := encode(test.value)
			if err != nil || string(got) != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
		})
	}
}

func FuzzABodyIsDecodedOrA400(f *testing.F) {
	f.Add([]byte(`{"name":"a","age":3,"tags":["x"]}`))
	f.Add([]byte(`{"name":"a","name":"b"}`))
	f.Add([]byte(`{"a/~b":1}`))
	f.Add([]byte(`null`))
	f.Add([]byte("{\"name\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var first person
		if err := decode(body, &first); err != nil {
			var problem *Problem
			if !errors.As(err, &problem) || problem.Status != http.StatusBadRequest || len(problem.Field) > maxFieldBytes {
				t.Fatalf("error %v, want a 400 with a short field", err)
			}
			answer := problemAnswer(http.Header{}, problem)
			if len(answer.body) == 0 {
				t.Fatalf("the problem %+v could not be encoded", problem)
			}
			return
		}
		text, err := encode(first)
		if err != nil {
			t.Fatal(err)
		}
		var second person
		if err := decode(text, &second); err != nil || first.Name != second.Name || first.Age != second.Age {
			t.Fatalf("%q came back as %+v, %v", body, second, err)
		}
	})
}
