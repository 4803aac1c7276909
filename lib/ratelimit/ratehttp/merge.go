package ratehttp

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// figures are what the RateLimit fields of one answer tell. The zero value tells nothing.
type figures struct {
	policies []figure    // one for each name, in the order in which they are told
	old      *oldFigures // nil when the older fields tell nothing
}

// figure is one policy: its member of each list, as text, "" where the list lacks it.
type figure struct {
	name             string
	policy, current  string
	known            bool // current has a number of units that are left
	remaining, reset int64
}

// oldFigures are the three older fields.
type oldFigures struct{ limit, remaining, reset int64 }

// set writes the fields, those that it has figures for.
func (f figures) set(header http.Header) {
	for name, value := range f.values() {
		header.Set(name, value)
	}
}

func (f figures) values() map[string]string {
	values := map[string]string{}
	add := func(name, member string) {
		switch {
		case member == "":
		case values[name] == "":
			values[name] = member
		default:
			values[name] += ", " + member
		}
	}
	for _, figure := range f.policies {
		add(fieldPolicy, figure.policy)
		add(fieldCurrent, figure.current)
	}
	if f.old != nil {
		values[fieldOldLimit] = strconv.FormatInt(f.old.limit, 10)
		values[fieldOldRemaining] = strconv.FormatInt(f.old.remaining, 10)
		values[fieldOldReset] = strconv.FormatInt(f.old.reset, 10)
	}
	return values
}

// merge leaves each field once in a header: what f tells, and what the header had from others, such
// as the service behind a reverse proxy. Each policy is named once, with its tightest figures, and
// the older fields are those of the tightest policy, whoever set them first. Fields of others that
// can't be read are dropped, since one of them makes the whole list unreadable (RFC 9651, section
// 4.2); so are older fields that are not all three there. When f tells nothing the header stays as
// it is.
func (f figures) merge(header http.Header) {
	if len(f.policies) == 0 {
		return
	}
	both := f.and(figuresIn(header))
	for _, name := range Fields() {
		header.Del(name)
	}
	both.set(header)
}

// and returns the figures of both, the tighter ones where both have them.
func (f figures) and(others figures) figures {
	both := figures{policies: slices.Clone(f.policies), old: f.old}
	for _, other := range others.policies {
		same := slices.IndexFunc(both.policies, func(one figure) bool { return one.name == other.name })
		if same < 0 {
			both.policies = append(both.policies, other)
			continue
		}
		both.policies[same] = tightest(both.policies[same], other)
	}
	if others.old != nil && (both.old == nil || others.old.tighter(*both.old)) {
		both.old = others.old
	}
	return both
}

// tightest returns one figure of two with one name. Where it lacks a member it takes the other
// one's.
func tightest(a, b figure) figure {
	if b.known && (!a.known || b.remaining < a.remaining || b.remaining == a.remaining && b.reset > a.reset) {
		a, b = b, a
	}
	a.policy, a.current = cmp.Or(a.policy, b.policy), cmp.Or(a.current, b.current)
	return a
}

func (o oldFigures) tighter(other oldFigures) bool {
	return o.remaining < other.remaining || o.remaining == other.remaining && o.reset > other.reset
}

// figuresIn reads the fields of a header, as far as they can be read.
func figuresIn(header http.Header) figures {
	var read figures
	// The members of one name belong together by their order: two services that each added a policy
	// "default" added both of its members.
	places := map[string][]int{}
	for _, member := range members(header.Values(fieldCurrent)) {
		one := figure{name: member.name, current: member.text, remaining: math.MaxInt64}
		one.remaining, one.known = member.number("r")
		one.reset, _ = member.number("t")
		places[one.name] = append(places[one.name], len(read.policies))
		read.policies = append(read.policies, one)
	}
	for _, member := range members(header.Values(fieldPolicy)) {
		if at := places[member.name]; len(at) > 0 {
			read.policies[at[0]].policy, places[member.name] = member.text, at[1:]
			continue
		}
		read.policies = append(read.policies, figure{name: member.name, policy: member.text})
	}
	limits, remaining := numbers(header.Values(fieldOldLimit)), numbers(header.Values(fieldOldRemaining))
	resets := numbers(header.Values(fieldOldReset))
	for i := range min(len(limits), len(remaining), len(resets)) {
		one := oldFigures{limits[i], remaining[i], min(resets[i], maxSeconds)}
		if read.old == nil || one.tighter(*read.old) {
			read.old = &one
		}
	}
	return figures{old: read.old}.and(read)
}

// numbers reads the values of an older field. Its earlier drafts add quotas to the limit, as
// members with parameters; they are no figures of their own.
func numbers(values []string) (out []int64) {
	for _, value := range values {
		for text := range strings.SplitSeq(value, ",") {
			text = strings.Trim(text, " \t")
			n, err := strconv.ParseUint(text, 10, 63)
			if err == nil {
				out = append(out, int64(n))
			}
		}
	}
	return out
}

// member is one of a list of structured fields: an item that is a string or a token, with its
// parameters.
type member struct {
	name   string
	text   string
	params map[string]string // their values as text
}

// number returns a parameter that is a whole number, not negative.
func (m member) number(name string) (int64, bool) {
	n, err := strconv.ParseUint(m.params[name], 10, 63)
	return int64(n), err == nil
}

// members reads the lines of a list of structured fields (RFC 9651, section 4.2.1) whose members
// are strings or tokens, which is what the RateLimit fields are. A line that is anything else is
// left out.
func members(lines []string) (all []member) {
	for _, line := range lines {
		rest := strings.Trim(line, " ")
		var list []member
		for more := rest != ""; more; {
			var one member
			var ok bool
			if one, rest, ok = cutMember(rest); !ok {
				list = nil
				break
			}
			list = append(list, one)
			rest = strings.TrimLeft(rest, " \t")
			if rest == "" {
				break
			}
			if rest, ok = strings.CutPrefix(rest, ","); !ok || strings.Trim(rest, " \t") == "" {
				list = nil
				break
			}
			rest = strings.TrimLeft(rest, " \t")
		}
		all = append(all, list...)
	}
	return all
}

// cutMember reads an item and its parameters from the beginning of a text.
func cutMember(text string) (m member, rest string, ok bool) {
	value, rest, ok := cutBare(text)
	if !ok || value[0] != '"' && !tokenBegins(value[0]) {
		return member{}, "", false
	}
	m.name, m.params = unquote(value), map[string]string{}
	for strings.HasPrefix(rest, ";") {
		rest = strings.TrimLeft(rest[1:], " ")
		end := 0
		for end < len(rest) && (lower(rest[end]) || rest[end] == '*' || end > 0 && (digit(rest[end]) || strings.IndexByte("_-.", rest[end]) >= 0)) {
			end++
		}
		if end == 0 {
			return member{}, "", false
		}
		key, value := rest[:end], "?1"
		rest = rest[end:]
		if after, found := strings.CutPrefix(rest, "="); found {
			if value, rest, ok = cutBare(after); !ok {
				return member{}, "", false
			}
		}
		m.params[key] = value
	}
	m.text = text[:len(text)-len(rest)]
	return m, rest, true
}

// cutBare reads a bare item (RFC 9651, section 4.2.3.1): a string, token, number, date, Boolean or
// byte sequence.
func cutBare(text string) (value, rest string, ok bool) {
	end := 0
	while := func(in func(byte) bool) {
		for end < len(text) && in(text[end]) {
			end++
		}
	}
	switch {
	case text == "":
		return "", "", false
	case text[0] == '"':
		for end = 1; end < len(text) && text[end] != '"'; end++ {
			if text[end] < ' ' || text[end] > '~' {
				return "", "", false
			}
			if text[end] == '\\' {
				if end++; end == len(text) || text[end] != '"' && text[end] != '\\' {
					return "", "", false
				}
			}
		}
		if end >= len(text) {
			return "", "", false
		}
		end++
	case tokenBegins(text[0]):
		while(func(c byte) bool {
			return tokenBegins(c) || digit(c) || strings.IndexByte("!#$%&'+-.^_`|~:/", c) >= 0
		})
	case text[0] == ':':
		end = 1
		while(func(c byte) bool { return c != ':' })
		if end == len(text) {
			return "", "", false
		}
		if _, err := base64.StdEncoding.DecodeString(text[1:end]); err != nil {
			return "", "", false
		}
		end++
	case text[0] == '?':
		if len(text) < 2 || text[1] != '0' && text[1] != '1' {
			return "", "", false
		}
		end = 2
	default:
		date := text[0] == '@'
		if date {
			end = 1
		}
		if strings.HasPrefix(text[end:], "-") {
			end++
		}
		begin := end
		while(digit)
		whole := end - begin
		if !date && whole > 0 && strings.HasPrefix(text[end:], ".") {
			end++
			begin = end
			while(digit)
			if parts := end - begin; whole > 12 || parts < 1 || parts > 3 {
				return "", "", false
			}
		}
		if whole < 1 || whole > 15 {
			return "", "", false
		}
	}
	return text[:end], text[end:], true
}

func unquote(value string) string {
	if value[0] != '"' {
		return value
	}
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(value[1 : len(value)-1])
}

func lower(c byte) bool       { return 'a' <= c && c <= 'z' }
func digit(c byte) bool       { return '0' <= c && c <= '9' }
func tokenBegins(c byte) bool { return lower(c) || 'A' <= c && c <= 'Z' || c == '*' }

// merging is a ResponseWriter that merges the fields of an answer just before its header goes out.
type merging struct {
	http.ResponseWriter
	told     figures
	final    bool // the header is out, or merged for the last time
	hijacked bool
}

// mergeFields returns a ResponseWriter for the handler, and what to call when that has returned. It
// has the optional methods that w has; others find w by Unwrap.
func mergeFields(w http.ResponseWriter, told figures) (_ http.ResponseWriter, returned func()) {
	m := &merging{ResponseWriter: w, told: told}
	_, flushes := w.(http.Flusher)
	pusher, pushes := w.(http.Pusher)
	switch hijacks := canHijack(w); {
	case flushes && hijacks:
		return struct {
			flushable
			hijackable
		}{flushable{m}, hijackable{m}}, m.merge
	case flushes && pushes:
		return struct {
			flushable
			http.Pusher
		}{flushable{m}, pusher}, m.merge
	case flushes:
		return flushable{m}, m.merge
	case hijacks:
		return struct {
			*merging
			hijackable
		}{m, hijackable{m}}, m.merge
	}
	return m, m.merge
}

// canHijack reports whether http.ResponseController finds a way to take the connection over.
func canHijack(w http.ResponseWriter) bool {
	for {
		if _, found := w.(http.Hijacker); found {
			return true
		}
		inner, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !wraps {
			return false
		}
		w = inner.Unwrap()
	}
}

type flushable struct{ *merging }

func (f flushable) Flush() { f.FlushError() }

type hijackable struct{ writer *merging }

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(h.writer.ResponseWriter).Hijack()
	h.writer.hijacked = err == nil
	return conn, both, err
}

// Header merges the fields once the connection has been taken over: a reverse proxy adds those of
// the other service to the header then, and writes the answer to an upgrade itself from what Header
// returns the next time.
func (m *merging) Header() http.Header {
	header := m.ResponseWriter.Header()
	if m.hijacked {
		m.told.merge(header)
	}
	return header
}

func (m *merging) merge() {
	if !m.final {
		m.final = true
		m.told.merge(m.ResponseWriter.Header())
	}
}

// WriteHeader merges the fields of interim answers too: a reverse proxy that passes them on clears
// the header after each.
func (m *merging) WriteHeader(status int) {
	interim := status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
	m.merge()
	m.final = !interim
	m.ResponseWriter.WriteHeader(status)
}

func (m *merging) Write(data []byte) (int, error) {
	m.merge()
	return m.ResponseWriter.Write(data)
}

// ReadFrom lets a file go out without being copied, where the connection can do that.
func (m *merging) ReadFrom(source io.Reader) (int64, error) {
	m.merge()
	if direct, ok := m.ResponseWriter.(io.ReaderFrom); ok {
		return direct.ReadFrom(source)
	}
	return io.Copy(struct{ io.Writer }{m.ResponseWriter}, source)
}

// FlushError is what http.ResponseController looks for. It fails where the connection can't flush;
// then nothing is out yet.
func (m *merging) FlushError() error {
	before := m.final
	m.merge()
	err := http.NewResponseController(m.ResponseWriter).Flush()
	if err != nil {
		m.final = before
	}
	return err
}

// Unwrap is what http.ResponseController follows.
func (m *merging) Unwrap() http.ResponseWriter { return m.ResponseWriter }
