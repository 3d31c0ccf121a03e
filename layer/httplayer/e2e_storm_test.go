package httplayer

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// named is a resolver that names n endpoints.
func named(n int) resolve.Resolver {
	u := resolve.Update{Kind: resolve.Add}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		u.Endpoints = append(u.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(addr, 80)}})
	}
	return resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			if yield(u, nil) {
				<-ctx.Done()
			}
		}
	})
}

// balanced balances over n endpoints that are all reached by dial.
func balanced(ctx context.Context, n int, dial func(ctx context.Context, network, addr string) (net.Conn, error), opts ...EndpointOption) Service {
	return NewStack().Queue(100, 3*time.Second).Service(balance.Resolve(ctx, named(n), "web",
		func(ctx context.Context, t discover.Target) Service {
			return NewEndpoint(ctx, t.Endpoint.Addr.String(), append(opts, WithDialContext(dial))...)
		}))
}

// acceptCounter counts the connections that a listener accepted.
type acceptCounter struct {
	net.Listener
	accepted atomic.Int64
}

func (c *acceptCounter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted.Add(1)
	}
	return conn, err
}

// A request to one of many endpoints opens one connection, and not one for each.
func TestE2EBalancerOpensOneConnection(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		c := &acceptCounter{Listener: l}
		serveOn(t, c, http.HandlerFunc(shapes))
		svc := balanced(t.Context(), 500, func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		}, protocol)
		require.NoError(t, get(t.Context(), svc, "/length"))
		time.Sleep(200 * time.Millisecond) // for others that would be on their way
		assert.EqualValues(t, 1, c.accepted.Load())
	})
}

// The balancer dials only a few endpoints at a time. It finds the working endpoint among many that
// drop all packets.
func TestE2EBalancerFewDialsAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		const n = 200
		h := newHost(ctx, 0)
		var dialling, most atomic.Int64
		svc := balanced(ctx, n, func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "10.0.0.1:80" {
				return h.network.DialContext(ctx, network, addr)
			}
			now := dialling.Add(1)
			defer dialling.Add(-1)
			for old := most.Load(); now > old; old = most.Load() {
				if most.CompareAndSwap(old, now) {
					break
				}
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		for range 300 { // one at a time, so that all else is by Ready
			_ = get(ctx, svc, "/")
		}
		for range 60 {
			require.NoError(t, get(ctx, svc, "/"), "by now the dead ones are set aside")
			time.Sleep(time.Second)
		}
		assert.LessOrEqual(t, most.Load(), int64(3*16), "16 places, and attempts that outlast their turn")
	})
}

// A server that was down for 40 s gets requests within 5 s of its return, whether
// it refused connections or dropped their packets, with and without a queue.
func TestE2EBalancerServerRecovers(t *testing.T) {
	for name, off := range map[string]error{"refused": syscall.ECONNREFUSED, "silent": errSilence} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				h := newHost(ctx, 0)
				s := &switched{network: &h.network}
				dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
					return s.DialContext(ctx, network, "10.0.0.1:80")
				}
				endpoint := func(ctx context.Context, t discover.Target) Service {
					return NewEndpoint(ctx, t.Endpoint.Addr.String(), WithDialContext(dial), WithIdleTimeout(time.Second))
				}
				bare := balance.Resolve(ctx, named(3), "web", endpoint)
				for name, svc := range map[string]Service{
					"queue":    balanced(ctx, 3, dial, WithIdleTimeout(time.Second)),
					"no queue": bare,
					"alone":    SingleEndpoint(NewEndpoint(ctx, "10.0.0.9:80", WithDialContext(dial), WithIdleTimeout(time.Second))),
				} {
					require.NoError(t, svc.Ready(ctx))
					require.NoError(t, get(ctx, svc, "/"), name)
					time.Sleep(2 * time.Second)
					s.set(off)
					for began := time.Now(); time.Since(began) < 40*time.Second; time.Sleep(200 * time.Millisecond) {
						require.Error(t, get(ctx, svc, "/"), name)
					}
					s.set(nil)
					began, err := time.Now(), errors.New("not yet")
					for err != nil && time.Since(began) < time.Minute {
						if err = get(ctx, svc, "/"); errors.Is(err, layer.ErrClosed) {
							break
						}
						time.Sleep(100 * time.Millisecond)
					}
					require.NoError(t, err, name)
					assert.Less(t, time.Since(began), 5*time.Second, name)
				}
			})
		})
	}
}
