package balance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
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

// dated is an endpoint with the number of the change that removed it. A request is the
// number of changes that were applied before it was sent.
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

// Many callers, with endpoints that change and reject at times. A request that is sent
// after a change does not reach a removed endpoint, nothing stays in flight, and no limit
// is exceeded.
func TestStorm(t *testing.T) {
	const changes, callers = 3000, 8
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var applied, late, served, refused atomic.Int64
	var over atomic.Bool
	feed, fed := make(chan discover.Change[int64, int]), make(chan struct{})
	b := balance.New(ctx, "web", func(yield func(discover.Change[int64, int]) bool) {
		defer close(fed)
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
					waitReady(t, b)
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	var current []*dated
	for i := 0; i < changes || served.Load() < 1000; i++ {
		if i%64 == 0 {
			runtime.Gosched() // let the callers in, on one processor too
		}
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
	<-fed // the last change is applied, and not only taken
	over.Store(true)
	all.Wait()
	require.Zero(t, late.Load())
	require.Positive(t, served.Load())
	t.Logf("%d served, %d refused", served.Load(), refused.Load())

	d := b.Describe()
	require.Len(t, d.Children, len(current))
	for _, child := range d.Children {
		require.EqualValues(t, 0, child.State.Get("in_flight"))
	}
	waitReady(t, b)
}

// waitReady waits for a ready endpoint, with a timeout.
func waitReady(t *testing.T, svc interface {
	Ready(ctx context.Context) error
}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	assert.NoError(t, svc.Ready(ctx))
}

// visited is a server that must not be called after its removal, and must live as long as
// its responses.
type visited struct {
	*server
	life context.Context
	left atomic.Int64 // since when it must get nothing, in ns of the test's time
	c    *churn
}

// Call responds after some milliseconds. One response in ten takes seconds.
func (v *visited) Call(ctx context.Context, req string) (*response, error) {
	if left := v.left.Load(); left > 0 && v.c.now() > left {
		v.c.late.Add(1)
	}
	rsp, err := v.server.Call(ctx, req)
	if err != nil {
		return nil, err
	}
	time.Sleep(around(5 * time.Millisecond)())
	long := slow{v: v}
	if rand.IntN(10) == 0 {
		long.lasts = around(3 * time.Second)()
	}
	rsp.Body = io.NopCloser(long)
	return rsp, nil
}

// slow is an empty body that ends after a while.
type slow struct {
	v     *visited
	lasts time.Duration
}

func (s slow) Read([]byte) (int, error) {
	time.Sleep(s.lasts)
	if s.v.life.Err() != nil {
		s.v.c.cut.Add(1)
	}
	return 0, io.EOF
}

// churn is a balancer with changing endpoints and its own resolver.
type churn struct {
	b       *balancer
	start   time.Time
	updates chan resolve.Update
	known   []resolve.Endpoint // endpoints of the resolver, in any order
	next    int                // endpoint, that was not there yet

	mu   sync.Mutex
	live map[*visited]struct{} // those with a context that has not ended

	late, cut, failed, drained atomic.Int64
	requests                   sync.WaitGroup
}

func newChurn(ctx context.Context, endpoints int) *churn {
	c := &churn{start: time.Now().Add(-1), updates: make(chan resolve.Update), live: make(map[*visited]struct{})}
	r := resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			for {
				select {
				case u := <-c.updates:
					if !yield(u, nil) {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}
	})
	c.b = balance.Resolve(ctx, r, "web", c.make)
	for range endpoints {
		c.join()
	}
	return c
}

func (c *churn) now() int64 { return int64(time.Since(c.start)) }

// make makes a server that is ready a little later, as if it connected.
func (c *churn) make(ctx context.Context, t discover.Target) layer.Service[string, *response] {
	v := &visited{server: newServer(0), life: ctx, c: c}
	v.addr = t.Endpoint.Addr
	v.open(false)
	time.AfterFunc(around(50*time.Millisecond)(), func() { v.open(true) })
	c.mu.Lock()
	c.live[v] = struct{}{}
	c.mu.Unlock()
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		delete(c.live, v)
		c.mu.Unlock()
	})
	return v
}

// leave removes an endpoint, which must get no new requests.
func (c *churn) leave() {
	i, last := rand.IntN(len(c.known)), len(c.known)-1
	addr := c.known[i].Addr
	c.known[i] = c.known[last]
	c.known = c.known[:last]
	c.updates <- resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{addr}}
	c.leavesIn(addr, 0)
}

func (c *churn) join() {
	e := newServer(c.next).endpoint().Endpoint
	c.next++
	c.known = append(c.known, e)
	c.add(e)
}

func (c *churn) add(e resolve.Endpoint) {
	c.updates <- resolve.Update{Kind: resolve.Add, Endpoints: []resolve.Endpoint{e}}
}

// rename changes the ID of an endpoint, so that another one replaces it.
func (c *churn) rename() {
	e := &c.known[rand.IntN(len(c.known))]
	e.ServerName += "x"
	c.leavesIn(e.Addr, 0)
	c.add(*e)
}

func (c *churn) relabel() {
	e := &c.known[rand.IntN(len(c.known))]
	e.Labels = map[string]string{"zone": string(rune('a' + rand.IntN(26)))}
	c.add(*e)
}

// leavesIn requires that the services of an address get no requests from d on.
func (c *churn) leavesIn(addr netip.AddrPort, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for v := range c.live {
		if v.addr == addr && v.left.Load() == 0 {
			v.left.Store(c.now() + int64(d))
		}
	}
}

func (c *churn) request() {
	rsp, err := c.b.Call(context.Background(), "")
	if err != nil {
		c.failed.Add(1)
		return
	}
	_, _ = io.Copy(io.Discard, rsp.Body)
	if rsp.Body.Close() == nil {
		c.drained.Add(1)
	}
}

// look compares the balancer with the resolver after all changes took effect.
func (c *churn) look(t *testing.T) {
	t.Helper()
	synctest.Wait()
	var has, known []string
	for _, child := range c.b.Describe().Children {
		has = append(has, fmt.Sprint(child.State.Get("addr")))
	}
	for _, e := range c.known {
		known = append(known, e.Addr.String())
	}
	slices.Sort(known)
	slices.Sort(has)
	require.Equal(t, known, has)
}

// An hour of load while ten endpoints are added and ten removed each second, and the IDs
// and labels of others change. No request fails, none reaches a removed endpoint, its
// requests in flight finish, and no goroutine and no service leaks. Under the race
// detector it is ten minutes.
func TestChurn(t *testing.T) {
	const (
		endpoints = 100
		step      = 25 * time.Millisecond // a request
		moves     = 4                     // steps to a join and a leave
		looks     = 400                   // steps to a look: ten seconds
	)
	duration := 10 * time.Minute
	if os.Getenv("GOTOWER_TESTS") == "full" && !raceEnabled() {
		duration = time.Hour
	}
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		c := newChurn(ctx, endpoints)
		time.Sleep(time.Second)
		c.look(t)
		idle, peak := runtime.NumGoroutine(), 0
		for i := range int(duration / step) {
			c.requests.Go(c.request)
			if i%moves == 0 {
				c.leave()
				c.join()
			}
			if i%(10*moves) == 0 {
				c.rename()
				c.relabel()
			}
			if i%looks == 0 {
				c.look(t)
				peak = max(peak, runtime.NumGoroutine()-idle)
			}
			time.Sleep(step)
		}
		c.requests.Wait()
		time.Sleep(time.Minute)
		c.look(t)
		require.Zero(t, c.failed.Load(), "requests that failed")
		require.Zero(t, c.late.Load(), "requests to removed endpoints")
		require.Zero(t, c.cut.Load(), "responses of endpoints with an ended context")
		require.EqualValues(t, duration/step, c.drained.Load())
		require.Less(t, peak, 60, "40 requests a second, of 5 ms and one in ten of 3 s, are 12 at a time")
		require.LessOrEqual(t, runtime.NumGoroutine(), idle+2, "but for the runtime's own")
		require.Len(t, c.live, endpoints, "removed endpoints were released")
		t.Logf("%d joins and leaves, %d requests, at most %d goroutines more than at rest", c.next-endpoints, c.drained.Load(), peak)
	})
}

func raceEnabled() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
