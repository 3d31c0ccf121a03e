package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadResolvConf(t *testing.T) {
	local := netip.MustParseAddrPort("127.0.0.1:53")
	one := netip.MustParseAddrPort("10.0.0.1:53")
	for text, want := range map[string]config{
		"":                      {servers: []netip.AddrPort{local}},
		"# nothing\n; either\n": {servers: []netip.AddrPort{local}},
		"nameserver 10.0.0.1":   {servers: []netip.AddrPort{one}},
		"nameserver 10.0.0.1 # first\r\n\tnameserver fe80::1%eth0\n": {
			servers: []netip.AddrPort{one, netip.MustParseAddrPort("[fe80::1%eth0]:53")},
		},
		"domain a.test\nsearch b.test . C.test.\n": {
			servers: []netip.AddrPort{local}, search: search{domains: []string{"b.test", "C.test."}},
		},
		"search b.test c.test\ndomain a.test": {
			servers: []netip.AddrPort{local}, search: search{domains: []string{"a.test"}},
		},
		"options ndots:5 rotate timeout:3 attempts:4 edns0\nsortlist 10.0.0.0\n": {
			servers: []netip.AddrPort{local}, search: search{ndots: 5}, timeout: 3 * time.Second, attempts: 4,
		},
		"options ndots:99 timeout:99 attempts:99": {
			servers: []netip.AddrPort{local}, search: search{ndots: 15}, timeout: 30 * time.Second, attempts: 5,
		},
		"options ndots:0 timeout:0 attempts:0": {servers: []netip.AddrPort{local}, timeout: time.Second, attempts: 1},
	} {
		var c config
		require.NoError(t, c.read(text), text)
		assert.Equal(t, want, c, text)
	}
}

func TestReadResolvConfErrors(t *testing.T) {
	for text, want := range map[string]string{
		"\nnameserver\n":                   "line 2: nameserver without an address",
		"nameserver ns1.test":              `line 1: nameserver "ns1.test" is not an IP address`,
		"nameserver 10.0.0.1:53":           `line 1: nameserver "10.0.0.1:53" is not an IP address`,
		"# a\n\nsearch a..b":               `line 3: search "a..b": the name has an empty label`,
		"options ndots":                    `line 1: options "ndots": not a number from 0: write ndots:2`,
		"options timeout:2s":               `line 1: options "timeout:2s": not a number from 0: write timeout:2`,
		"options rotate\noptions ndots:-1": `line 2: options "ndots:-1": not a number from 0`,
	} {
		require.ErrorContains(t, new(config).read(text), want)
	}
}

func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(file, []byte("nameserver 10.0.0.1\nsearch a\noptions ndots:3 timeout:7 attempts:5\n"), 0o600))
	one := netip.MustParseAddrPort("10.0.0.1:53")
	nine := netip.MustParseAddrPort("10.0.0.9:99")
	for name, tt := range map[string]struct {
		opts []Option
		want config
	}{
		"file": {[]Option{WithResolvConf(file)}, config{[]netip.AddrPort{one}, search{[]string{"a"}, 3}, 7 * time.Second, 5}},
		"options before file": {
			[]Option{WithResolvConf(file), WithSearch(2, "b"), WithTimeout(time.Second), WithAttempts(1)},
			config{[]netip.AddrPort{one}, search{[]string{"b"}, 2}, time.Second, 1},
		},
		"no file": {
			[]Option{WithResolvConf(file + "x")},
			config{[]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}, search{ndots: 1}, 2 * time.Second, 2},
		},
		"servers instead of file": {
			[]Option{WithResolvConf(file), WithServers(nine, netip.MustParseAddrPort("10.0.0.1:0")), WithTimeout(0), WithAttempts(0)},
			config{[]netip.AddrPort{nine, one}, search{ndots: 1}, 2 * time.Second, 2},
		},
	} {
		got, err := New(tt.opts...).options.config()
		require.NoError(t, err, name)
		assert.Equal(t, tt.want, got, name)
	}
	assert.Equal(t, "/etc/resolv.conf", New().options.file)

	for want, opt := range map[string]Option{
		"dns: read " + filepath.Dir(file) + ": is a directory": WithResolvConf(filepath.Dir(file)),
	} {
		_, err := first(t.Context(), New(WithResolvConf(file), opt), "web:80")
		require.EqualError(t, err, want)
	}
}

// A file without an error has servers and attempts.
func FuzzReadResolvConf(f *testing.F) {
	f.Add("nameserver 10.0.0.1\nsearch a b.\noptions ndots:5 timeout:1\n# x\n")
	f.Add("domain .\n;\nnameserver ::1%x\noptions attempts:00 ndots:999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		c := config{timeout: time.Second, attempts: 1}
		if err := c.read(text); err != nil {
			require.Regexp(t, `^line [1-9]\d*: `, err.Error())
			return
		}
		require.NotEmpty(t, c.servers)
		for _, s := range c.servers {
			require.True(t, s.IsValid())
		}
		require.Positive(t, c.timeout)
		require.LessOrEqual(t, c.timeout, 30*time.Second)
		require.GreaterOrEqual(t, c.attempts, 1)
		require.LessOrEqual(t, c.attempts, 5)
		require.GreaterOrEqual(t, c.search.ndots, 0)
		require.LessOrEqual(t, c.search.ndots, 15)
		require.Contains(t, c.search.names("web", false), "web.")
	})
}
