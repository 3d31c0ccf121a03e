package balance_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
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

// dated is an endpoint that knows since which change it is removed. Requests
// are the number of changes that were applied before they were sent.
type dated struct {
	layer.Service[int64, int]
	addr    netip.AddrPort
	removed atomic.Int64
	late    *atomic.Int64
	calls   atomic.Int64
}

func (d *dated) Call(ctx context.Context, sent int64) (int, error) {
	if removed := d.removed.Load(); removed > 0 && removed <= sent {
		d.late.Add(1)
	}
	d.calls.Add(1)
	return d.Service.Call(ctx, sent)
}

func (d *dated) endpoint() *discover.Endpoint[int64, int] {
	return &discover.Endpoint[int64, int]{Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: d.addr}}, Service: d}
}

// The storm: many callers, endpoints that come and go and refuse at times. A
// request that is sent after a change was applied does not reach what the
// change removed; nothing stays in flight; nobody's limit is exceeded.
func TestStorm(t *testing.T) {
	const changes, callers = 3000, 8
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var applied, late, served, refused atomic.Int64
	var over atomic.Bool
	feed := make(chan discover.Change[int64, int])
	b := balance.New(ctx, "web", func(yield func(discover.Change[int64, int]) bool) {
		for c := range feed {
			if !yield(c) {
				return
			}
			n := applied.Load() + 1
			for _, e := range c.Removed {
				e.Service.(*dated).removed.Store(n)
			}
			applied.Store(n)
		}
	})
	newOne := func(i int) *dated {
		limit := layer.Limit[int64, int](1 + i%2)(layer.Func[int64, int](func(context.Context, int64) (int, error) {
			runtime.Gosched() // others come meanwhile
			return 1, nil
		}))
		return &dated{Service: limit, addr: newServer(i % 4000).addr, late: &late}
	}
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for !over.Load() {
				_, err := b.Call(context.Background(), applied.Load())
				switch {
				case err == nil:
					served.Add(1)
				case errors.Is(err, layer.ErrNotReady):
					refused.Add(1)
					assert.NoError(t, b.Ready(context.Background()))
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	var current []*dated
	for i := range changes {
		c := discover.Change[int64, int]{State: resolve.StateExists}
		if len(current) > 4 || len(current) > 1 && rand.IntN(2) == 0 {
			j := rand.IntN(len(current))
			c.Removed = append(c.Removed, current[j].endpoint())
			current = append(current[:j], current[j+1:]...)
		}
		if len(current) < 2 || rand.IntN(2) == 0 {
			d := newOne(i)
			c.Added = append(c.Added, d.endpoint())
			current = append(current, d)
		}
		feed <- c
	}
	close(feed)
	over.Store(true)
	all.Wait()
	require.Zero(t, late.Load())
	require.Positive(t, served.Load())
	t.Logf("%d served, %d refused", served.Load(), refused.Load())

	d := b.Describe()
	require.Len(t, d.Children, len(current))
	// A node's picks are added up while others are just being counted there.
	require.InEpsilon(t, served.Load(), d.State.Get("picks"), 0.01)
	for _, child := range d.Children {
		require.EqualValues(t, 0, child.State.Get("in_flight"))
	}
	require.NoError(t, b.Ready(context.Background()))
}

// guarded is a server that must not be called when its life is over.
type guarded struct {
	*server
	life context.Context
	t    *testing.T
}

func (g guarded) Call(ctx context.Context, req string) (*response, error) {
	rsp, err := g.server.Call(ctx, req)
	assert.NoError(g.t, g.life.Err(), "it has what is in flight to finish")
	return rsp, err
}

// Minutes of endpoints that come and go under load: no request fails for
// it, none reaches what has gone, the set is the resolver's, and the
// goroutines are as many as the requests and a few.
func TestChurn(t *testing.T) {
	const (
		total    = 100
		duration = 2 * time.Minute
	)
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		updates := make(chan resolve.Update)
		r := resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
			return func(yield func(resolve.Update, error) bool) {
				for {
					select {
					case u := <-updates:
						if !yield(u, nil) {
							return
						}
					case <-ctx.Done():
						return
					}
				}
			}
		})
		var live sync.Map // of the addresses that are served, by their lives
		b := balance.Resolve(ctx, r, "web", func(ctx context.Context, tg discover.Target) layer.Service[string, *response] {
			s := newServer(0)
			s.addr = tg.Endpoint.Addr
			s.after(around(10 * time.Millisecond))
			live.Store(s, ctx)
			context.AfterFunc(ctx, func() { live.Delete(s) })
			return guarded{s, ctx, t}
		})
		var all resolve.Set
		apply := func(u resolve.Update) {
			all.Apply(u)
			updates <- u
		}
		first := resolve.Update{Kind: resolve.Replace}
		for i := range total {
			first.Endpoints = append(first.Endpoints, newServer(i).endpoint().Endpoint)
		}
		apply(first)
		synctest.Wait()
		idle := runtime.NumGoroutine()

		end := time.Now().Add(duration)
		var requests sync.WaitGroup
		requests.Go(func() {
			for next := total; time.Now().Before(end); next++ {
				time.Sleep(100 * time.Millisecond)
				known := all.Endpoints()
				apply(resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{known[rand.IntN(len(known))].Addr}})
				apply(resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{newServer(next % 60_000).endpoint().Endpoint}})
			}
		})
		var peak int
		for i := 0; time.Now().Before(end); i++ {
			requests.Go(func() {
				rsp, err := b.Call(ctx, "")
				if assert.NoError(t, err) {
					_, _ = io.Copy(io.Discard, rsp.Body)
				}
			})
			time.Sleep(every)
			if i%500 == 0 {
				peak = max(peak, runtime.NumGoroutine()-idle)
			}
		}
		requests.Wait()
		synctest.Wait()
		require.Less(t, peak, 100, "500 requests a second of 10 ms are 5 at a time")
		require.LessOrEqual(t, runtime.NumGoroutine(), idle+2, "but for the runtime's own")
		d := b.Describe()
		require.Len(t, d.Children, total)
		for i, e := range all.Endpoints() {
			require.Equal(t, e.Addr, d.Children[i].State.Get("addr"))
		}
		services := 0
		live.Range(func(_, _ any) bool { services++; return true })
		require.Equal(t, total, services, "what has gone was released")
	})
}
