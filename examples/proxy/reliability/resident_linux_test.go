package reliability

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// The resident memory of whole proxies. It is printed and not asserted, because it depends on the
// machine. BENCHMARKS.md contains the figures.
func TestResidentMemory(t *testing.T) {
	whole(t)
	up := newUpstream(t, nil)
	t.Run("clear", func(t *testing.T) {
		p := startProxy(t, newPlane(t, up.addr).addr)
		idle := p.steady(t)
		p.burst(t, size(1000, 300_000), true)
		loaded := p.rss(t)
		rest()
		t.Logf("RSS idle %.1f MiB, under load %.1f, after it %.1f", idle.rss, loaded, p.rss(t))
	})
	t.Run("TLS", func(t *testing.T) {
		authority := newAuthority(t)
		pl := newPlane(t)
		server := startProxy(t, pl.addr, append(authority.environ(t, "server"), "GOTOWER_INBOUND_ORIGIN=fixed:"+up.addr)...)
		pl.cfg = served(webName, controller.Unknown, server.listens(t, "inbound"))
		d := pl.cfg.Destinations[webName]
		d.Endpoints[0].Identity = "server.cluster.local"
		require.NoError(t, pl.Set(pl.cfg))
		client := startProxy(t, pl.addr, authority.environ(t, "client")...)
		both := func() [2]float64 { return [2]float64{client.rss(t), server.rss(t)} }
		client.steady(t)
		idle := both()
		client.burst(t, size(100, 16_000), false)
		loaded := both()
		rest()
		t.Logf("RSS of client and server: idle %.1f MiB, after the handshakes %.1f, idle again %.1f", idle, loaded, both())
	})
}

// rest gives a proxy without load time to return memory, which it checks every 5 s.
func rest() { time.Sleep(time.Duration(size(1, 16_000)) * time.Millisecond) }

// burst sends n requests, 64 of them concurrently. If keep is false, they use HTTP/1.0, so that
// each needs a connection of its own, in front of the proxy and behind it.
func (p *process) burst(t *testing.T, n int, keep bool) {
	t.Helper()
	client := through(t, p.addr, false)
	var begun atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	for range 64 {
		group.Go(func() error {
			for begun.Add(1) <= int64(n) {
				var err error
				if keep {
					err = get(ctx, client, "http://web.test/")
				} else {
					err = short(p.addr, true)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}

// authority is a certificate authority for proxies.
type authority struct {
	addr, dir string
	*ca.Authority
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a, err := ca.New("cluster.local")
	require.NoError(t, err)
	l := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- ca.Serve(ctx, l, a, func(context.Context, string, []byte) error { return nil }, "")
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return authority{l.Addr().String(), t.TempDir(), a}
}

// environ returns the environment variables for the identity name.
func (a authority) environ(t *testing.T, name string) []string {
	t.Helper()
	keys, full := filepath.Join(a.dir, name), name+".cluster.local"
	require.NoError(t, os.Mkdir(keys, 0o700))
	require.NoError(t, os.WriteFile(keys+".token", []byte("token"), 0o600))
	require.NoError(t, identity.Generate(keys, full))
	const prefix = "LINKERD2_PROXY_IDENTITY_"
	return []string{
		prefix + "SVC_ADDR=" + a.addr, prefix + "DIR=" + keys, prefix + "TRUST_ANCHORS=" + string(a.TrustAnchors()),
		prefix + "TOKEN_FILE=" + keys + ".token", prefix + "LOCAL_NAME=" + full,
	}
}
