package web

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/ratelimit"
)

func TestTheClientAddressIsBelievedOnlyFromWhereItCannotBeForged(t *testing.T) {
	const platform, elsewhere = true, false
	const vercel, real = "X-Vercel-Forwarded-For", "X-Real-Ip"
	tests := []struct {
		name     string
		platform bool
		socket   string
		header   []string // name, value, name, value, …
		want     string   // empty: no address
	}{
		{"the platform's header counts", platform, "", []string{vercel, "203.0.113.9"}, "203.0.113.9"},
		{"its second header counts when the first is missing", platform, "", []string{real, "203.0.113.9"}, "203.0.113.9"},
		{"the first wins over the second", platform, "", []string{vercel, "203.0.113.9", real, "192.0.2.1"}, "203.0.113.9"},
		{"a blank header is like a missing one", platform, "", []string{vercel, " ", real, "192.0.2.1"}, "192.0.2.1"},
		{"a list is passed over", platform, "", []string{vercel, "198.51.100.1, 203.0.113.9", real, "192.0.2.1"}, "192.0.2.1"},
		{"a repeated header is passed over", platform, "", []string{vercel, "198.51.100.1", vercel, "203.0.113.9", real, "192.0.2.1"}, "192.0.2.1"},
		{"a list alone is no address", platform, "", []string{real, "198.51.100.1, 203.0.113.9"}, ""},
		{"on the platform the socket is the platform's own", platform, "203.0.113.9:4711", nil, ""},
		{"off the platform no header is believed", elsewhere, "203.0.113.9:4711", []string{vercel, "192.0.2.1", real, "192.0.2.2"}, "203.0.113.9"},
		// Case A31.
		{"x-forwarded-for is not read on the platform", platform, "", []string{"X-Forwarded-For", "192.0.2.1", real, "203.0.113.9"}, "203.0.113.9"},
		{"x-forwarded-for alone is no address", platform, "", []string{"X-Forwarded-For", "192.0.2.1"}, ""},
		{"x-forwarded-for is not read off the platform", elsewhere, "203.0.113.9", []string{"X-Forwarded-For", "192.0.2.1"}, "203.0.113.9"},
		// Case A33.
		{"an IPv6 client is its /64", platform, "", []string{vercel, "2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::"},
		{"another /64 is another client", platform, "", []string{vercel, "2001:db8:1:3::1"}, "2001:db8:1:3::"},
		// Case A34.
		{"a mapped IPv4 address is the IPv4 address", platform, "", []string{vercel, "::ffff:198.51.100.7"}, "198.51.100.7"},
		{"another mapped address is another client", platform, "", []string{vercel, "::ffff:198.51.100.8"}, "198.51.100.8"},
		// Case A35.
		{"upper case and zero runs don't matter", platform, "", []string{vercel, "2001:DB8:0:0::1"}, "2001:db8::"},
		{"brackets don't matter", platform, "", []string{vercel, "[2001:db8::1]"}, "2001:db8::"},
		{"a zone is no address", platform, "", []string{vercel, "fe80::1%eth0"}, ""},
		{"leading zeros are no address", platform, "", []string{vercel, "010.0.0.1"}, ""},
		{"numbers above 255 are no address", platform, "", []string{vercel, "999.1.1.1"}, ""},
		{"a word is no address", platform, "", []string{vercel, "abc"}, ""},
		{"after an unreadable header no other is asked", platform, "", []string{vercel, "abc", real, "203.0.113.9"}, ""},
		// Case A36.
		{"a port is dropped", platform, "", []string{vercel, "203.0.113.9:50001"}, "203.0.113.9"},
		{"a port after brackets is dropped", platform, "", []string{vercel, "[2001:db8::1]:443"}, "2001:db8::"},
		// Case A37.
		{"a socket without a port is an address", elsewhere, "203.0.113.10", nil, "203.0.113.10"},
		// Issue 10, point 12: the socket's zone is dropped, and no other.
		{"a link-local client off the platform", elsewhere, "[fe80::1%eth0]:4000", nil, "fe80::"},
		{"a link-local client whose socket has no port", elsewhere, "fe80::1%eth0", nil, "fe80::"},
		{"a zone in brackets is no address", platform, "", []string{vercel, "[fe80::1%eth0]:4000"}, ""},
		// Case A38.
		{"no socket is no address", elsewhere, "", nil, ""},
		{"a socket without an address is no address", elsewhere, "@", nil, ""},
		// Case A52.
		{"loopback is an address like others", platform, "", []string{vercel, "127.0.0.1"}, "127.0.0.1"},
		{"a private address is an address like others", platform, "", []string{vercel, "10.0.0.1"}, "10.0.0.1"},
		{"a link-local address is an address like others", platform, "", []string{vercel, "169.254.1.1"}, "169.254.1.1"},
		{"IPv6 loopback is an address like others", platform, "", []string{vercel, "::1"}, "::"},
	}
	// Case A32.
	for _, name := range []string{"CF-Connecting-IP", "True-Client-IP", "Forwarded", "X-Client-IP", "X-Cluster-Client-IP",
		"Fastly-Client-IP", "X-Forwarded", "X-Originating-IP"} {
		tests = append(tests, struct {
			name     string
			platform bool
			socket   string
			header   []string
			want     string
		}{name + " is not read", platform, "", []string{name, "192.0.2.1", vercel, "203.0.113.9"}, "203.0.113.9"})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: test.socket, Header: http.Header{}}
			for i := 0; i < len(test.header); i += 2 {
				r.Header.Add(test.header[i], test.header[i+1])
			}
			got, err := clientAddress(r, test.platform)
			if got != test.want {
				t.Errorf("address %q, want %q", got, test.want)
			}
			if noAddress := errors.Is(err, errNoAddress); noAddress != (test.want == "") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func FuzzAnAddressIsCanonicalOrNone(f *testing.F) {
	f.Add("203.0.113.9", "203.0.113.9:80", true)
	f.Add("", "[2001:db8::1]:443", false)
	f.Add("fe80::1%eth0", "010.0.0.1", true)
	f.Add("::ffff:198.51.100.7", "::ffff:198.51.100.7%a", true)
	f.Add("64:ff9b::c000:201", "@", true)
	f.Fuzz(func(t *testing.T, header, socket string, platform bool) {
		r := &http.Request{RemoteAddr: socket, Header: http.Header{"X-Vercel-Forwarded-For": {header}}}
		got, err := clientAddress(r, platform)
		if err != nil {
			if got != "" || !errors.Is(err, errNoAddress) {
				t.Fatalf("address %q with error %v", got, err)
			}
			return
		}
		address, err := netip.ParseAddr(got)
		if err != nil || address.Zone() != "" || address.Is4In6() || address.String() != got {
			t.Fatalf("%q is not a canonical address: %v", got, err)
		}
		if _, err := (ratelimit.Address).Canonical(got); err != nil {
			t.Fatalf("a policy can't be charged for %q: %v", got, err)
		}
		again, err := countedAddress(got)
		if err != nil || again != got {
			t.Fatalf("%q became %q, %v", got, again, err)
		}
		if platform && strings.Contains(header, ",") {
			t.Fatalf("the list %q was read", header)
		}
	})
}
