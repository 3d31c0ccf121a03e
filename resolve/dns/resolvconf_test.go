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
	local := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("[::1]:53")}
	one := netip.MustParseAddrPort("10.0.0.1:53")
	// A search line, so that the name of this host does not matter.
	list := search{domains: []string{"a.test"}}
	for text, want := range map[string]config{
		"search a.test":                                           {servers: local, search: list},
		"# nothing\n; either\nsearch a.test":                      {servers: local, search: list},
		"\nnameserver\nsearch a.test":                             {servers: local, search: list},
		"nameserver ns1.test\nsearch a.test":                      {servers: local, search: list},
		"nameserver 10.0.0.1:53\ndomain a.test":                   {servers: local, search: list},
		"nameserver 10.0.0.1#53\nsearch a.test":                   {servers: local, search: list},
		"nameserver x\nnameserver 10.0.0.1\ndomain a.test b.test": {servers: []netip.AddrPort{one}, search: list},
		"nameserver 10.0.0.1 # first\r\n\tnameserver fe80::1%eth0\nsearch a.test  \t\r\n": {
			servers: []netip.AddrPort{one, netip.MustParseAddrPort("[fe80::1%eth0]:53")}, search: list,
		},
		"nameserver 10.0.0.1\nnameserver 10.0.0.1\nnameserver 10.0.0.1\nnameserver 10.0.0.4\nsearch a.test": {
			servers: []netip.AddrPort{one, one, one}, search: list,
		},
		"domain a.test\nsearch b.test . C.test. #\n":  {servers: local, search: search{domains: []string{"b.test", "C.test.", "#"}}},
		"search b.test c.test\ndomain a.test\ndomain": {servers: local, search: list},
		"options ndots:5 rotate timeout:3 attempts:4 edns0\nsortlist 10.0.0.0\noptions use-vc single-request\nsearch a.test": {
			servers: local, search: search{[]string{"a.test"}, 5}, timeout: 3 * time.Second, attempts: 4,
			rotate: true, overTCP: true, sequential: true,
		},
		"options ndots:99 timeout:99 attempts:99999999999999999999\nsearch a.test": {
			servers: local, search: search{[]string{"a.test"}, 15}, timeout: 99 * time.Second, attempts: 1000,
		},
		"options ndots:0 timeout:0 attempts:0\nsearch a.test":        {servers: local, search: list, timeout: time.Second, attempts: 1},
		"options ndots:-1 timeout:x attempts:\nsearch a.test":        {servers: local, search: list, timeout: time.Second, attempts: 1},
		"options ndots timeout attempts trust-ad x:1\nsearch a.test": {servers: local, search: list},
		"options ndots:2x timeout:2s\nsearch a.test":                 {servers: local, search: search{[]string{"a.test"}, 2}, timeout: 2 * time.Second},
	} {
		var c config
		c.read(text)
		assert.Equal(t, want, c, text)
	}
}

func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(file, []byte("nameserver 10.0.0.1\nsearch a\noptions ndots:3 timeout:7 attempts:5\n"), 0o600))
	one := netip.MustParseAddrPort("10.0.0.1:53")
	local := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("[::1]:53")}
	nine := netip.MustParseAddrPort("10.0.0.9:99")
	for name, tt := range map[string]struct {
		opts []Option
		want config
	}{
		"file": {[]Option{WithResolvConf(file)}, config{servers: []netip.AddrPort{one}, search: search{[]string{"a"}, 3}, timeout: 7 * time.Second, attempts: 5}},
		"options before file": {
			[]Option{WithResolvConf(file), WithSearch(2, "b"), WithTimeout(time.Second), WithAttempts(1)},
			config{servers: []netip.AddrPort{one}, search: search{[]string{"b"}, 2}, timeout: time.Second, attempts: 1},
		},
		"no file": {
			[]Option{WithResolvConf(file + "x"), WithSearch(1)},
			config{servers: local, search: search{ndots: 1}, timeout: 5 * time.Second, attempts: 2},
		},
		"servers instead of file": {
			[]Option{WithResolvConf(file), WithServers(nine, netip.MustParseAddrPort("10.0.0.1:0")), WithTimeout(0), WithAttempts(0)},
			config{servers: []netip.AddrPort{nine, one}, search: search{ndots: 1}, timeout: 5 * time.Second, attempts: 2},
		},
	} {
		assert.Equal(t, tt.want, New(tt.opts...).options.config(), name)
	}
	assert.Equal(t, "/etc/resolv.conf", New().options.file)

	unreadable := New(WithResolvConf(filepath.Dir(file)), WithSearch(1)).options.config()
	require.ErrorContains(t, unreadable.err, "is a directory")
	assert.Equal(t, local, unreadable.servers)
}

// Any file gives servers and attempts.
func FuzzReadResolvConf(f *testing.F) {
	f.Add("nameserver 10.0.0.1\nsearch a b.\noptions ndots:5 timeout:1\n# x\n")
	f.Add("domain .\n;\nnameserver ::1%x\noptions attempts:00 ndots:999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		c := config{timeout: time.Second, attempts: 1}
		c.read(text)
		require.NotEmpty(t, c.servers)
		require.LessOrEqual(t, len(c.servers), 3)
		for _, s := range c.servers {
			require.True(t, s.IsValid())
		}
		require.GreaterOrEqual(t, c.timeout, time.Second)
		require.GreaterOrEqual(t, c.attempts, 1)
		require.GreaterOrEqual(t, c.search.ndots, 0)
		require.LessOrEqual(t, c.search.ndots, 15)
		require.Contains(t, c.search.names("web", false), "web.")
	})
}
