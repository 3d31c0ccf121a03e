package dns

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

func TestParseHosts(t *testing.T) {
	got, err := parseHosts("", []byte(`
# comment
127.0.0.1	localhost web.test # another comment
::1 localhost ip6-localhost
fe80::1%lo0 localhost
::ffff:10.0.0.1 Mapped.Test.
0.0.0.0 blocked.test
:: blocked.test
not-an-address skipped.test
10.0.0.9
10.0.0.2 web.test`))
	require.NoError(t, err)
	addrs := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	assert.Equal(t, map[string][]netip.Addr{
		"localhost":     addrs("127.0.0.1", "::1", "fe80::1%lo0"),
		"ip6-localhost": addrs("::1"),
		"web.test":      addrs("127.0.0.1", "10.0.0.2"),
		"mapped.test":   addrs("10.0.0.1"),
		"blocked.test":  nil,
	}, got)
}

func writeHosts(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestHostsFile(t *testing.T) {
	path := writeHosts(t, "10.0.0.1 web web.test\nfd00::1 web.test\n0.0.0.0 ads.test\n10.0.0.7 here.localhost\n")
	for name, tt := range map[string]struct {
		target string
		opts   []Option
		want   string
		asked  []string
	}{
		"both families":                 {target: "web.test:80", want: "replace 10.0.0.1:80 [fd00::1]:80"},
		"case and a dot at the end":     {target: "WEB.test.:80", want: "replace 10.0.0.1:80 [fd00::1]:80"},
		"one family":                    {target: "web.test:80", opts: []Option{WithIPv6Only()}, want: "replace [fd00::1]:80"},
		"the other family only":         {target: "web:80", opts: []Option{WithIPv6Only()}, want: "empty"},
		"before the search list":        {target: "web:80", opts: []Option{WithSearch(1, "a.test")}, want: "replace 10.0.0.1:80"},
		"blocked":                       {target: "ads.test:80", want: "empty"},
		"localhost":                     {target: "localhost:80", want: "replace 127.0.0.1:80 [::1]:80"},
		"localhost, IPv4":               {target: "LOCALHOST.:80", opts: []Option{WithIPv4Only()}, want: "replace 127.0.0.1:80"},
		"below localhost":               {target: "web.localhost:80", want: "replace 127.0.0.1:80 [::1]:80"},
		"below localhost, in the file":  {target: "here.localhost:80", want: "replace 10.0.0.7:80"},
		"localhost without resolv.conf": {target: "localhost:80", opts: []Option{WithServers(), WithResolvConf(".")}, want: "replace 127.0.0.1:80 [::1]:80"},
		"no file":                       {target: "localhost:80", opts: []Option{WithHostsFile("none")}, want: "replace 127.0.0.1:80 [::1]:80"},
		"no regular file": {
			target: "web.test:80", opts: []Option{WithHostsFile(os.DevNull), WithIPv4Only()}, want: "does not exist", asked: []string{"udp A web.test."},
		},
		"after SRV records": {
			target: "_http._tcp.web.test:80", opts: []Option{WithIPv4Only()},
			want: "replace 10.0.0.1:80", asked: []string{"udp SRV _http._tcp.web.test."},
		},
		"another name": {
			target: "localhost.test:80", opts: []Option{WithIPv4Only()}, want: "does not exist", asked: []string{"udp A localhost.test."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, s := bubble(append([]Option{WithHostsFile(path)}, tt.opts...)...)
				u, err := first(t.Context(), r, tt.target)
				require.NoError(t, err)
				assert.Equal(t, tt.want, text(u))
				assert.Equal(t, tt.asked, s.asked())
			})
		})
	}
}

func TestHostsFileChanges(t *testing.T) {
	path := writeHosts(t, "10.0.0.1 web.test\n")
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithHostsFile(path), WithIPv4Only())
		s.put("web", "web.test. 60 A 10.0.0.9")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := watch(ctx, r, "web.test:80")
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, w.take())
		require.NoError(t, os.WriteFile(path, []byte("10.0.0.2 web.test\n"), 0o600))
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.2:80"}, w.take())
		require.Empty(t, s.asked())
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.9:80"}, w.take())
	})
}

func TestTargetWithoutPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const hint = `dns: resolve "web.test": no endpoints by SRV records: ` +
			`a name without a port asks for SRV records; write web.test:80 to ask for A and AAAA records`
		var items []string
		go func() {
			for u, err := range r.Resolve(ctx, "web.test") {
				if err != nil {
					items = append(items, err.Error())
				} else {
					items = append(items, text(u))
				}
			}
		}()
		synctest.Wait()
		assert.Equal(t, []string{"does not exist", hint}, items)
		s.put("web", "web.test. 60 SRV 0 0 80 a.test.", "a.test. 60 A 10.0.0.1")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"does not exist", hint, "replace 10.0.0.1:80"}, items)
	})
	for _, err := range New().Resolve(t.Context(), "localhost") {
		require.ErrorIs(t, err, resolve.ErrUnresolvable)
		require.ErrorContains(t, err, "write localhost:80")
	}
}

// The rejection of a balancer names the missing records.
func TestTargetWithoutPortInBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := bubble()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b := balance.Resolve(ctx, r, balance.Config{Target: "web.test"}, func(context.Context, discover.Target) layer.Service[int, int] { return nil })
		synctest.Wait()
		_, err := b.Call(ctx, 1)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, discover.ErrDoesNotExist)
		require.ErrorContains(t, err, "write web.test:80 to ask for A and AAAA records")
	})
}
