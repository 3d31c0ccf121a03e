package dns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]target{
		"10.0.0.1:80":          {literal: netip.MustParseAddrPort("10.0.0.1:80")},
		"[fd00::1]:80":         {literal: netip.MustParseAddrPort("[fd00::1]:80")},
		"[::ffff:10.0.0.1]:80": {literal: netip.MustParseAddrPort("10.0.0.1:80")},
		"web:80":               {host: "web", port: 80},
		"Web.Test:65535":       {host: "web.test", port: 65535},
		"web.test.:1":          {host: "web.test", port: 1, complete: true},
		"web.test":             {srv: "web.test"},
		"_http._tcp.web":       {srv: "_http._tcp.web"},
		"_http._tcp.web.:80":   {srv: "_http._tcp.web", host: "web", port: 80, complete: true},
		"_http._tcp:80":        {host: "_http._tcp", port: 80},
		"_http.tcp.web:80":     {host: "_http.tcp.web", port: 80},
		"1.2.3:80":             {host: "1.2.3", port: 80},
		"xn--bcher-kva.ch:443": {host: "xn--bcher-kva.ch", port: 443},
		"Bücher.ch:443":        {host: "xn--bcher-kva.ch", port: 443},
		"0.0.0.0:80":           {literal: netip.MustParseAddrPort("0.0.0.0:80")}, // this host, as in package net
		"[fe80::1%eth0]:80":    {literal: netip.MustParseAddrPort("[fe80::1%eth0]:80")},
	} {
		got, err := parseTarget(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, got, in)
	}
}

func TestParseTargetErrors(t *testing.T) {
	long := strings.Repeat("a", 63)
	for in, want := range map[string]string{
		"":            "missing name",
		".":           "missing name",
		":80":         "missing name",
		"..:80":       "the name has an empty label",
		"a..b:80":     "the name has an empty label",
		".a:80":       "the name has an empty label",
		"web:":        "the port is not a number from 1 to 65535",
		"web:0":       "the port is not a number from 1 to 65535",
		"web:65536":   "the port is not a number from 1 to 65535",
		"web:-1":      "the port is not a number from 1 to 65535",
		"web:8o_":     "the port is not a number from 1 to 65535",
		"web:_http":   "the port is not a number from 1 to 65535",
		"web:http":    "the port is not a number from 1 to 65535",
		"10.0.0.1":    "an address needs a port that is a number",
		"10.0.0.1:":   "an address needs a port that is a number",
		"10.0.0.1:0":  "the port is not a number from 1 to 65535",
		"10.0.0.1:ab": "an address needs a port that is a number",
		"fd00::1":     "an address needs a port that is a number",
		"[fd00::1]":   "an address needs a port that is a number",
		"a:b:80":      "an address needs a port that is a number",
		"a b:80":      `the name has a character other than a-z, 0-9, - and _ at " b"`,
		"\u2260.ch:1": "the name has a character other than a-z, 0-9, - and _ at",
		"a/b:80":      "a URL or a path: want host:port",

		"a" + long + ":80":                     "has 64 characters; 63 are the most",
		strings.Repeat(long+".", 4) + ":80":    "the name has 255 characters; 253 are the most",
		strings.Repeat("a.", 126) + "aa:80":    "the name has 254 characters; 253 are the most",
		"web:" + strings.Repeat("a", 16):       "the port is not a number from 1 to 65535",
		strings.Repeat("a.", 125) + "aa" + ":": "the port is not a number from 1 to 65535",
	} {
		got, err := parseTarget(in)
		require.ErrorIs(t, err, resolve.ErrUnresolvable, "%q", in)
		require.ErrorContains(t, err, want, "%q", in)
		assert.Zero(t, got)
	}
	_, err := parseTarget(strings.Repeat("a.", 126) + "a:80")
	require.NoError(t, err)
}

// An invalid target ends the stream without a question.
func TestUnresolvable(t *testing.T) {
	r := New(WithServers(netip.MustParseAddrPort("127.0.0.1:1")))
	for _, in := range []string{"a..b:80", "web:http", "", "10.0.0.1"} {
		n := 0
		for u, err := range r.Resolve(t.Context(), in) {
			require.ErrorIs(t, err, resolve.ErrUnresolvable)
			assert.Zero(t, u)
			n++
		}
		assert.Equal(t, 1, n)
	}
	assert.Zero(t, r.flights.Len())
}

// A parsed target can be asked for with any search list.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{
		"web:80", "_http._tcp.web.test.:80", "10.0.0.1:80", "[::1%lo]:1", "web:http", "a..b", "é:1", strings.Repeat("a.", 126) + "a:80",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseTarget(s)
		if err != nil {
			require.ErrorIs(t, err, resolve.ErrUnresolvable)
			require.Zero(t, got)
			return
		}
		if got.literal.IsValid() {
			require.Equal(t, target{literal: got.literal}, got)
			require.NotZero(t, got.literal.Port())
			return
		}
		require.NotEmpty(t, got.srv+got.host)
		require.Equal(t, got.host != "", got.port != 0)
		for _, name := range []string{got.srv, got.host} {
			if name == "" {
				continue
			}
			list := search{domains: []string{"svc.test", strings.Repeat("b.", 100)}}.names(name, got.complete)
			require.Contains(t, list, name+".")
			for _, complete := range list {
				_, err := newQuery(complete, 1, payload)
				require.NoError(t, err)
			}
		}
	})
}
