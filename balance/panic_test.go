package balance_test

import (
	"context"
	"io"
	"iter"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func port(n uint16) resolve.Endpoint {
	return resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), n)}}
}

// moody has a Ready that panics for a while.
type moody struct {
	layer.Service[int, uint16]
	panics atomic.Bool
}

func (m *moody) Ready(ctx context.Context) error {
	if m.panics.Load() {
		panic("ready boom")
	}
	return m.Service.Ready(ctx)
}

// A MakeService or a Ready that panics affects one endpoint only.
func TestMakeServicePanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		late := new(moody)
		late.panics.Store(true)
		b := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{"web": {port(1), port(2), port(3), port(4)}}), "web",
			func(_ context.Context, tg discover.Target) layer.Service[int, uint16] {
				n := tg.Endpoint.Addr.Port()
				svc := layer.Func[int, uint16](func(context.Context, int) (uint16, error) { return n, nil })
				switch n {
				case 1:
					panic("make boom")
				case 2:
					late.Service = svc
					return late
				}
				return svc
			})
		synctest.Wait()
		served := func() map[uint16]bool {
			by := make(map[uint16]bool)
			for range 200 {
				n, err := b.Call(ctx, 1)
				require.NoError(t, err)
				by[n] = true
			}
			return by
		}
		require.Equal(t, map[uint16]bool{3: true, 4: true}, served())
		states := b.Snapshot()
		require.Equal(t, "closed", states[0].State)
		require.ErrorIs(t, states[0].Reason, layer.ErrClosed)
		require.ErrorContains(t, states[0].Reason, "discover web 10.0.0.1:1: closed: no service was made for it: MakeService: panic at panic_test.go:")
		require.ErrorContains(t, states[0].Reason, ": make boom")
		require.Equal(t, "unready", states[1].State)
		require.ErrorContains(t, states[1].Reason, ": ready boom")

		late.panics.Store(false)
		require.Eventually(t, func() bool { return b.Snapshot()[1].State == "ready" }, 10e9, 1e8)
		require.Equal(t, map[uint16]bool{2: true, 3: true, 4: true}, served())
	})
}

// The set stays after a panic of the resolver, which is its last error.
func TestResolverPanics(t *testing.T) {
	broken := resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			yield(resolve.Update{Kind: resolve.Replace, Endpoints: []resolve.Endpoint{port(1)}}, nil)
			panic("resolver boom")
		}
	})
	for name, r := range map[string]resolve.Resolver{
		"itself":     broken,
		"Merge":      resolve.Merge(broken),
		"Fallback":   resolve.Fallback(broken, static.New(nil)),
		"ServeStale": resolve.ServeStale(broken, resolve.StalePolicy{}),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b := balance.Resolve(ctx, r, "web", func(context.Context, discover.Target) layer.Service[int, int] {
					return layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
				})
				synctest.Wait()
				got, err := b.Call(ctx, 7)
				require.NoError(t, err)
				require.Equal(t, 7, got)
				if name == "itself" {
					require.Contains(t, b.Describe().State.Get("error"), "the resolver: panic at panic_test.go:")
					return
				}
				text := ""
				until, stop := context.WithTimeout(ctx, time.Second)
				defer stop()
				for _, err := range r.Resolve(until, "web") {
					if err != nil {
						text += err.Error()
					}
				}
				require.Contains(t, text, "the resolver: panic at panic_test.go:")
			})
		})
	}
}

func TestChangesPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b := balance.New(ctx, "web", func(yield func(change) bool) {
			yield(change{State: resolve.StateExists, Added: []*endpoint{s.endpoint()}})
			panic("changes boom")
		})
		synctest.Wait()
		_, err := b.Call(ctx, "")
		require.NoError(t, err)
		require.Contains(t, b.Describe().State.Get("error"), "changes boom")
	})
}

// closing counts its Close.
type closing struct {
	io.Reader
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return nil
}

// The response is closed if a callback panics.
func TestCompletionPanicClosesResponse(t *testing.T) {
	for name, option := range map[string]option{
		"classifier": balance.WithClassifier(func(layer.Outcome[*response]) layer.Class { panic("boom") }),
		"completion": balance.WithCompletion(func(context.Context, *response, layer.Observer) *response { panic("boom") }),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, s := newPool(t, option), newServer(1)
				var body closing
				s.serve = func(context.Context, string) (*response, error) { return &response{Body: &body}, nil }
				p.add(s)
				require.PanicsWithValue(t, "boom", func() { _, _ = p.balancer.Call(t.Context(), "") })
				require.Equal(t, 1, body.closed)
				require.Zero(t, p.balancer.Snapshot()[0].InFlight)
			})
		})
	}
}
