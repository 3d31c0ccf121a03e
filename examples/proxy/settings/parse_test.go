package settings

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0ms": 0, " 23ms\t": 23 * time.Millisecond, "1s": time.Second, "456789m": 456789 * time.Minute,
		"2h": 2 * time.Hour, "365d": 365 * 24 * time.Hour,
	} {
		got, err := parseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "1", ".123h", "1.23h", "1 ms", "-1s", "123456789012345678901234567890ms", "12moons", "12y", "106752d"} {
		_, err := parseDuration(text)
		require.Error(t, err, text)
	}
}

func TestParsePorts(t *testing.T) {
	for text, want := range map[string]Ports{
		"": nil, " , ,": nil, "1-65535": {{1, 65535}}, "1-2,42,80-420": {{1, 2}, {42, 42}, {80, 420}},
		"40,30,20,1": {{1, 1}, {20, 20}, {30, 30}, {40, 40}}, "1, 2,\t3- 5": {{1, 5}}, "0,65535": {{0, 0}, {65535, 65535}},
	} {
		got, err := parsePorts(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"asdf", "80, http", "80-79", "-1", "1,2-,50", "69420", "1-69420", "1-2-3", "+1"} {
		_, err := parsePorts(text)
		require.Error(t, err, text)
	}
}

// TestPortsSet compares Ports with a list of every port.
func TestPortsSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all [64]bool
		var ports Ports
		for range rapid.IntRange(0, 8).Draw(t, "ranges") {
			first := rapid.Uint16Range(0, 63).Draw(t, "first")
			last := rapid.Uint16Range(first, 63).Draw(t, "last")
			ports = append(ports, PortRange{first, last})
			for p := first; p <= last; p++ {
				all[p] = true
			}
		}
		ports = ports.joined()
		for p, in := range all {
			if ports.Contains(uint16(p)) != in {
				t.Fatalf("%v has %d: %v", ports, p, !in)
			}
		}
		for i := 1; i < len(ports); i++ {
			if int(ports[i].First) <= int(ports[i-1].Last)+1 {
				t.Fatalf("%v could be joined", ports)
			}
		}
	})
}

func TestSuffixes(t *testing.T) {
	s, err := parseSuffixes(" svc.Cluster.local. , example.com")
	require.NoError(t, err)
	for name, in := range map[string]bool{
		"web.svc.cluster.local": true, "WEB.SVC.CLUSTER.LOCAL.": true, "svc.cluster.local": true,
		"xsvc.cluster.local": false, "cluster.local": false, "a.example.com": true, "": false,
	} {
		require.Equal(t, in, s.Contains(name), name)
	}
	none, err := parseSuffixes("")
	require.NoError(t, err)
	require.False(t, none.Contains("a"))
	all, err := parseSuffixes(".")
	require.NoError(t, err)
	require.True(t, all.Contains("a"))
	_, err = parseSuffixes("a .b.c")
	require.Error(t, err)
}

func TestAddressUnmap(t *testing.T) {
	ips, err := parseIPs("::ffff:127.0.0.1,::1,10.1.2.3")
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("10.1.2.3"),
	}, ips)
	networks, err := parseNetworks("::ffff:10.1.2.3/104,::ffff:10.1.2.3/128,::ffff:0:0/96,::/0,::ffff:0:0/95,fd00::/8,10.0.0.0/8")
	require.NoError(t, err)
	for i, want := range []string{"10.0.0.0/8", "10.1.2.3/32", "0.0.0.0/0", "::/0", "::fffe:0:0/95", "fd00::/8", "10.0.0.0/8"} {
		require.Equal(t, netip.MustParsePrefix(want), networks[i])
	}
}

func TestCores(t *testing.T) {
	for _, tt := range []struct {
		Cores
		available, want int
	}{
		{Cores{}, 8, 8},
		{Cores{Min: 1}, 8, 1},
		{Cores{Min: 3}, 8, 3},
		{Cores{Min: 9}, 8, 8},
		{Cores{Max: 4}, 8, 4},
		{Cores{Max: 4, MaxRatio: 0.25}, 8, 4},
		{Cores{MaxRatio: 0.25}, 8, 2},
		{Cores{MaxRatio: 0.3}, 5, 2},
		{Cores{MaxRatio: 0.01}, 8, 1},
		{Cores{Min: 4, MaxRatio: 0.25}, 8, 4},
	} {
		require.Equal(t, tt.want, tt.Count(tt.available), "%+v", tt)
	}
}

func TestParseHostPort(t *testing.T) {
	for _, good := range []string{"dst.example:8086", "localhost.:8086", "127.0.0.1:1", "[::1]:65535", "a_b-c:80"} {
		_, err := parseHostPort(good)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"", "a", "a:", ":80", "a:0", "a:65536", "a b:80", "a..b:80", "::1:80x", "http://a:80", "a:http"} {
		_, err := parseHostPort(bad)
		require.Error(t, err, bad)
	}
}

func TestInvalidErrorLength(t *testing.T) {
	p := &InvalidError{Where: "X", Text: strings.Repeat("a", 10_000), Err: noError{}}
	require.Less(t, len(p.Error()), 200)
}

type noError struct{}

func (noError) Error() string { return "no" }

// FuzzEveryVariable sets each variable to the input.
func FuzzEveryVariable(f *testing.F) {
	for _, s := range []string{
		"0", "10ms", "1d", "true", "127.0.0.1:80", "[::1]:80", "80,90-99", "10.0.0.0/8", "a=b,c=d", "svc.cluster.local.", ".",
		"fixed:1.2.3.4:5", "spiffe://a/b", "deny", "warn,linkerd=info", "1e300", "NaN", "\xff", "99999999999999999999",
		"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, g := range variables(new(Settings)) {
			for i := range g.variables {
				_ = g.variables[i].set(text)
			}
		}
		if d, err := parseDuration(text); err == nil && d < 0 {
			t.Fatalf("%q is %v", text, d)
		}
		if j, err := parseJitter(text); err == nil && (math.IsNaN(j) || j < 0) {
			t.Fatalf("%q is %v", text, j)
		}
		if addr, err := parseHostPort(text); err == nil && strings.ContainsAny(addr, " \n/") {
			t.Fatalf("%q is %q", text, addr)
		}
		ports, err := parsePorts(text)
		if err == nil && !slices.IsSortedFunc(ports, func(a, b PortRange) int { return int(a.First) - int(b.First) }) {
			t.Fatalf("%q is %v", text, ports)
		}
		if o, err := parseOrigin(text); err == nil && o.Kind == Fixed && o.Addr == (netip.AddrPort{}) {
			t.Fatalf("%q is %v", text, o)
		}
	})
}
