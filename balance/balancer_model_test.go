package balance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	wire "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/linkerd"
)

// believed is the expected state of one endpoint.
type believed struct {
	*server
	state  string
	labels map[string]string
	picks  uint64
	open   []*response
}

// model is a balancer without concurrency.
type model struct {
	*pool
	present map[int]*believed
	removed []*believed
	state   resolve.State
	next    int
}

// reaches counts the requests sent to a server, rejected or not.
func (b *believed) reaches() int64 { return b.calls.Load() + b.refused.Load() }

// settle waits for background changes: endpoints that are ready again return.
func (m *model) settle() {
	synctest.Wait()
	for _, b := range m.present {
		switch {
		case b.state != "unready":
		case b.gone.Load():
			b.state = "closed"
		case b.isOpen.Load():
			b.state = "ready"
		}
	}
}

func (m *model) count(state string) (n int) {
	for _, b := range m.present {
		if b.state == state {
			n++
		}
	}
	return n
}

func (m *model) pick(rt *rapid.T) *believed {
	if len(m.present) == 0 {
		rt.Skip("no endpoint")
	}
	var ids []int
	for i := range m.next {
		if m.present[i] != nil {
			ids = append(ids, i)
		}
	}
	return m.present[rapid.SampledFrom(ids).Draw(rt, "endpoint")]
}

func (m *model) update(rt *rapid.T) {
	c := change{State: m.state}
	for i := range m.next {
		b := m.present[i]
		if b == nil {
			continue
		}
		switch rapid.SampledFrom([]string{"keep", "keep", "label", "remove"}).Draw(rt, fmt.Sprint(i)) {
		case "label":
			b.labels = map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "zone")}
			c.Changed = append(c.Changed, b.labelled(b.labels))
		case "remove":
			c.Removed = append(c.Removed, b.endpoint())
			m.removed = append(m.removed, b)
			delete(m.present, i)
		}
	}
	for range rapid.IntRange(0, 3).Draw(rt, "added") {
		b := &believed{server: newServer(m.next), state: "ready"}
		switch rapid.SampledFrom([]string{"open", "open", "shut", "closed"}).Draw(rt, "is") {
		case "shut":
			b.state = "unready"
			b.server.open(false)
		case "closed":
			b.state = "closed"
			b.close()
		}
		c.Added = append(c.Added, b.endpoint())
		m.present[m.next] = b
		m.next++
	}
	if m.state = resolve.StateExists; len(m.present) == 0 {
		m.state = rapid.SampledFrom([]resolve.State{resolve.StateEmpty, resolve.StateDoesNotExist}).Draw(rt, "state")
	}
	c.State = m.state
	m.apply(c)
}

// call sends one request and checks the balancer against the model.
func (m *model) call(ctx context.Context, rt *rapid.T) {
	calls, refused := make(map[int]int64), make(map[int]int64)
	for i, b := range m.present {
		calls[i], refused[i] = b.calls.Load(), b.refused.Load()
	}
	rsp, err := m.Call(ctx, "")
	var refusals, served int
	for i, b := range m.present {
		took, refused := b.calls.Load()-calls[i], b.refused.Load()-refused[i]
		if took+refused > 0 {
			require.Equal(rt, "ready", b.state, "only the ready ones are tried")
			require.EqualValues(rt, 1, took+refused, "once")
		}
		switch {
		case took > 0:
			served++
			b.picks++
			b.open = append(b.open, rsp)
		case refused > 0 && b.gone.Load():
			refusals++
			b.state = "closed"
		case refused > 0:
			refusals++
			b.state = "unready"
		}
	}
	require.LessOrEqual(rt, refusals, 5)
	if err == nil {
		require.Equal(rt, 1, served)
		return
	}
	require.Zero(rt, served)
	require.ErrorIs(rt, err, layer.ErrNotReady)
	require.NotErrorIs(rt, err, layer.ErrClosed)
	require.True(rt, refusals == 5 || m.count("ready") == 0, "it gave up too early: %v", err)
}

func (m *model) check(rt *rapid.T) {
	m.settle()
	d := m.Describe()
	require.Equal(rt, m.state, d.State.Get("state"))
	require.Equal(rt, m.count("ready"), d.State.Get("ready"))
	require.Len(rt, d.Children, len(m.present))
	for _, b := range m.present {
		s := m.of(b.server)
		require.NotNil(rt, s)
		require.Equal(rt, b.state, s.Get("state"))
		require.Equal(rt, b.picks, s.Get("picks"), "statistics survive updates")
		require.EqualValues(rt, len(b.open), s.Get("in_flight"))
		if b.labels == nil {
			require.Nil(rt, s.Get("labels"))
		} else {
			require.Equal(rt, b.labels, s.Get("labels"))
		}
	}
	m.poll(rt)
}

// poll calls Ready of the balancer, which polls an endpoint and removes it from the ready
// set if it is not ready.
func (m *model) poll(rt *rapid.T) {
	var open, stale int
	for _, b := range m.present {
		switch {
		case b.state != "ready":
		case b.isOpen.Load() && !b.gone.Load():
			open++
		default:
			stale++
		}
	}
	err := layer.Poll(m.balancer)
	for _, b := range m.present {
		now := m.of(b.server).Get("state").(string)
		if now == b.state {
			continue
		}
		require.Equal(rt, "ready", b.state)
		require.True(rt, b.gone.Load() || !b.isOpen.Load())
		b.state = now
	}
	switch {
	case open > 0:
		require.NoError(rt, err)
	case stale < 5:
		require.ErrorIs(rt, err, layer.ErrNotReady)
		require.Zero(rt, m.count("ready"))
	}
}

// After any sequence of changes and requests the balancer has the states of the model.
func TestBalancerModel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer synctest.Wait()
			defer cancel()
			m := &model{pool: newPoolIn(ctx), present: make(map[int]*believed)}
			reached := make(map[*believed]int64)
			rt.Repeat(map[string]func(*rapid.T){
				"update": m.update,
				"error":  func(*rapid.T) { m.apply(change{State: m.state, Err: io.ErrUnexpectedEOF}) },
				"call":   func(rt *rapid.T) { m.call(ctx, rt) },
				"calls": func(rt *rapid.T) {
					for range 10 {
						m.call(ctx, rt)
						m.settle()
					}
				},
				"read": func(rt *rapid.T) {
					if b := m.pick(rt); len(b.open) > 0 {
						require.NoError(rt, b.open[0].Body.Close())
						b.open = b.open[1:]
					}
				},
				"open":  func(rt *rapid.T) { m.pick(rt).server.open(true) },
				"shut":  func(rt *rapid.T) { m.pick(rt).server.open(false) },
				"close": func(rt *rapid.T) { m.pick(rt).close() },
				"": func(rt *rapid.T) {
					m.check(rt)
					for _, b := range m.removed {
						if before, known := reached[b]; known {
							require.Equal(rt, before, b.reaches(), "nothing is sent to removed endpoints")
						}
						reached[b] = b.reaches()
					}
				},
			})
		})
	})
}

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
	b := balance.New(ctx, balance.Config{Target: "web"}, func(yield func(discover.Change[int64, int]) bool) {
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
	c.b = balance.Resolve(ctx, r, balance.Config{Target: "web"}, c.make)
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

// moods are the ways of an outage.
var moods = []mood{
	{lost: true},
	{refuses: true},
	{accept: func(net.Conn) {}},
	{accept: func(c net.Conn) { _ = c.Close() }},
	{accept: func(c net.Conn) { _ = c.(interface{ CloseWrite() error }).CloseWrite() }},
	fails(codes.Unavailable),
	{frozen: true, answer: func(_ *destination.Update, to getStream) error { <-to.Context().Done(); return nil }},
	{answer: func(firstMessage *destination.Update, to getStream) error { return to.Send(firstMessage) }},
	{answer: func(_ *destination.Update, to getStream) error { return sendAndWait(firstMessage("nonsense"), to) }},
	{refuses: true},
}

// An outage of an hour of the control plane fails no request to a known target. The
// control plane gets at most one dial or stream in five seconds for each target. Its
// answer takes effect after the longest backoff.
func TestOutage(t *testing.T) {
	for name, b := range map[string]resolve.Backoff{
		"by default":              {},
		"ten seconds at the most": {Min: 500 * time.Millisecond, Max: 10 * time.Second, Jitter: 0.1},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testOutage(t, b) }) })
	}
}

func testOutage(t *testing.T, b resolve.Backoff) {
	p := newPlane(t, firstMessage("10.0.0.1", "10.0.0.2"))
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	svc := p.services(ctx, resolve.ServeStale(p.source(b), resolve.StalePolicy{}))
	start := time.Now()
	back := start.Add(10*time.Minute + time.Hour)
	// The pause of a dial, and ours before and after it, with their jitter: an
	// attempt that came just before the dial has to wait once more.
	use := back.Add((2*b.OrDefault().Max + mostDial) * 6 / 5)
	var callers sync.WaitGroup
	for target, gap := range map[string]time.Duration{
		"busy": time.Second, "now and then": 50 * time.Second,
	} {
		callers.Go(func() {
			for ; time.Since(start) < 90*time.Minute; time.Sleep(gap) {
				sent := time.Now()
				where, err := svc.Call(ctx, target)
				assert.NoError(t, err, "%s after %v", target, sent.Sub(start))
				assert.LessOrEqual(t, time.Since(sent), 1100*time.Millisecond, "%s after %v", target, sent.Sub(start))
				switch {
				case sent.Before(back):
					assert.True(t, strings.HasPrefix(where, "10.0.0."), where)
				case sent.After(use):
					assert.Equal(t, "10.0.1.1", where, "%s, %v after all is well", target, sent.Sub(back))
				}
			}
		})
	}
	time.Sleep(10 * time.Minute)
	dials, opened := p.dials.Load(), p.attempts()
	for _, m := range moods {
		p.become(t, m, firstMessage("10.0.0.1", "10.0.0.2"))
		time.Sleep(time.Hour / time.Duration(len(moods)))
	}
	dials = p.dials.Load() - dials
	for target, n := range p.attempts() {
		n -= opened[target]
		t.Logf("%s: %d streams, and %d dials for all", target, n, dials)
		assert.LessOrEqual(t, float64(int64(n)+dials)/3600, 0.2, target)
	}
	p.become(t, mood{}, firstMessage("10.0.1.1"))
	callers.Wait()
}

// The effect of the first answer after a minute's outage, with and without
// resolve.ServeStale.
func TestOutageWrongAnswer(t *testing.T) {
	const (
		old    = "10.0.0.1 10.0.0.2"
		none   = "balance web: not ready: the target has no endpoints"
		absent = "balance web: not ready: the target does not exist"
	)
	well := mood{}
	for name, tt := range map[string]struct {
		mood         mood
		firstMessage *destination.Update
		plain        string // where requests go soon, and later
		soon         string // the same with resolve.ServeStale, within its 30 s
		later        string // and after them
	}{
		"the same":          {mood: well, firstMessage: firstMessage("10.0.0.1", "10.0.0.2"), plain: old, soon: old, later: old},
		"empty":             {mood: well, firstMessage: noEndpointsMessage(true), plain: none, soon: old, later: none},
		"does not exist":    {mood: well, firstMessage: noEndpointsMessage(false), plain: absent, soon: old, later: absent},
		"fewer":             {mood: well, firstMessage: firstMessage("10.0.0.1"), plain: "10.0.0.1", soon: "10.0.0.1", later: "10.0.0.1"},
		"others":            {mood: well, firstMessage: firstMessage("10.0.0.2", "10.0.0.3"), plain: "10.0.0.2 10.0.0.3", soon: "10.0.0.2 10.0.0.3", later: "10.0.0.2 10.0.0.3"},
		"none of the same":  {mood: well, firstMessage: firstMessage("10.0.1.1", "10.0.1.2"), plain: "10.0.1.1 10.0.1.2", soon: "10.0.1.1 10.0.1.2", later: "10.0.1.1 10.0.1.2"},
		"nonsense":          {mood: well, firstMessage: firstMessage("nonsense"), plain: old, soon: old, later: old},
		"nonsense and some": {mood: well, firstMessage: firstMessage("nonsense", "10.0.1.1"), plain: "10.0.1.1", soon: "10.0.1.1", later: "10.0.1.1"},
		"not found":         {mood: fails(codes.NotFound), plain: old, soon: old, later: old},
		"denied":            {mood: fails(codes.PermissionDenied), plain: old, soon: old, later: old},
		"empty, then missing": {
			mood:  mood{answer: func(_ *destination.Update, to getStream) error { return to.Send(noEndpointsMessage(true)) }},
			plain: none + `: linkerd: get "web": stream ended`, soon: old, later: old,
		},
		"empty, then well": {
			mood: mood{answer: func(_ *destination.Update, to getStream) error {
				_ = to.Send(noEndpointsMessage(true))
				select {
				case <-time.After(20 * time.Second):
				case <-to.Context().Done():
					return to.Context().Err()
				}
				return sendAndWait(firstMessage("10.0.1.1"), to)
			}},
			plain: none, soon: old, later: "10.0.1.1",
		},
	} {
		for _, keeps := range []bool{false, true} {
			title := name
			if keeps {
				title += ", kept"
			}
			t.Run(title, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPlane(t, firstMessage("10.0.0.1", "10.0.0.2"))
					defer p.close()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					steady := resolve.Backoff{Min: time.Second, Max: time.Second}
					r, soon := p.source(steady), tt.plain
					if keeps {
						r, soon = resolve.ServeStale(r, resolve.StalePolicy{}), tt.soon
					}
					b := balance.Resolve(ctx, r, balance.Config{Target: "web"}, p.serve)
					time.Sleep(time.Minute)
					p.become(t, mood{refuses: true}, nil)
					time.Sleep(time.Minute)
					assert.Equal(t, old, p.where(t, b), "while it is away")
					p.become(t, tt.mood, tt.firstMessage)
					time.Sleep(mostDial*6/5 + 2*time.Second)
					assert.Equal(t, soon, p.where(t, b), "soon after it is back")
					if keeps {
						time.Sleep(time.Minute)
						assert.Equal(t, tt.later, p.where(t, b), "later")
					}
				})
			})
		}
	}
}

// where returns the endpoints of svc, or why it rejects.
func (p *plane) where(t *testing.T, svc layer.Service[string, string]) string {
	rsp, err := svc.Call(context.Background(), "web")
	if err != nil {
		return err.Error()
	}
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.True(t, p.live[rsp], "%s is not one of %v", rsp, p.live)
	return strings.Join(slices.Sorted(maps.Keys(p.live)), " ")
}

type getStream = grpc.ServerStreamingServer[destination.Update]

// mood is the behaviour of a control plane. The zero mood is healthy.
type mood struct {
	lost    bool           // packets to it are lost
	refuses bool           // no listener
	frozen  bool           // health checks are not answered
	accept  func(net.Conn) // instead of speaking gRPC
	answer  func(firstMessage *destination.Update, to getStream) error
}

// plane is a destination controller on a network in memory, with one connection to it.
type plane struct {
	destination.UnimplementedDestinationServer
	network layertest.Network
	stop    func()
	conn    *grpc.ClientConn
	dials   atomic.Int64

	mu           sync.Mutex
	mood         mood
	firstMessage *destination.Update
	opened       map[string]int // streams, by target

	live map[string]bool // endpoints in use
}

const (
	planeAt = "10.9.9.9:8086"
	// mostDial is gRPC's longest pause between dials, but for a fifth at random.
	mostDial = 10 * time.Second
)

// firstMessage returns the first message of a stream, with the given endpoints.
func firstMessage(addrs ...string) *destination.Update {
	set := &destination.WeightedAddrSet{}
	for _, a := range addrs {
		tcp := &wire.TcpAddress{Port: 80} // without an IP it cannot be read
		if ip, err := netip.ParseAddr(a); err == nil {
			b := ip.As4()
			n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
			tcp.Ip = &wire.IPAddress{Ip: &wire.IPAddress_Ipv4{Ipv4: n}}
		}
		set.Addrs = append(set.Addrs, &destination.WeightedAddr{Addr: tcp})
	}
	return &destination.Update{Update: &destination.Update_Add{Add: set}}
}

func noEndpointsMessage(exists bool) *destination.Update {
	return &destination.Update{Update: &destination.Update_NoEndpoints{NoEndpoints: &destination.NoEndpoints{Exists: exists}}}
}

func newPlane(t *testing.T, first *destination.Update) *plane {
	p := &plane{stop: func() {}, opened: map[string]int{}, live: map[string]bool{}}
	p.become(t, mood{}, first)
	var err error
	p.conn, err = grpc.NewClient("passthrough:///"+planeAt,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(p.dial),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 5 * time.Minute}), // the least that servers allow
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostDial},
			MinConnectTimeout: mostDial,
		}),
		grpc.WithStreamInterceptor(p.count),
	)
	require.NoError(t, err)
	return p
}

func (p *plane) close() {
	_ = p.conn.Close()
	p.stop()
}

// become changes the mood and the answer. Open streams end, unless their end is lost too.
func (p *plane) become(t *testing.T, m mood, firstMessage *destination.Update) {
	p.mu.Lock()
	p.mood, p.firstMessage = m, firstMessage
	p.mu.Unlock()
	if m.lost {
		return
	}
	p.stop()
	p.stop = func() {}
	if m.refuses {
		return
	}
	l, err := p.network.Listen("tcp", planeAt)
	require.NoError(t, err)
	var done sync.WaitGroup
	if m.accept == nil {
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			if m.frozen {
				<-s.Context().Done()
			}
			return status.Error(codes.Unimplemented, "unknown service")
		}))
		destination.RegisterDestinationServer(server, p)
		done.Go(func() { _ = server.Serve(l) })
		p.stop = func() { server.Stop(); done.Wait() }
		return
	}
	done.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			defer conn.Close()
			m.accept(conn)
		}
	})
	p.stop = func() { _ = l.Close(); done.Wait() }
}

func (p *plane) now() (mood, *destination.Update) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mood, p.firstMessage
}

func (p *plane) Get(_ *destination.GetDestination, to getStream) error {
	m, firstMessage := p.now()
	if m.answer != nil {
		return m.answer(firstMessage, to)
	}
	return sendAndWait(firstMessage, to)
}

func sendAndWait(firstMessage *destination.Update, to getStream) error {
	if err := to.Send(firstMessage); err != nil {
		return err
	}
	<-to.Context().Done()
	return to.Context().Err()
}

func fails(code codes.Code) mood {
	return mood{answer: func(*destination.Update, getStream) error { return status.Error(code, "out of order") }}
}

func (p *plane) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.dials.Add(1)
	conn, err := p.network.DialContext(ctx, "tcp", planeAt)
	return leaky{conn, p}, err
}

// leaky is a connection that drops data.
type leaky struct {
	net.Conn
	to *plane
}

func (l leaky) Write(b []byte) (int, error) {
	if m, _ := l.to.now(); m.lost {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

type targetKey struct{}

func (p *plane) count(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	p.mu.Lock()
	p.opened[ctx.Value(targetKey{}).(string)]++
	p.mu.Unlock()
	return next(ctx, desc, cc, method, opts...)
}

// serve makes the service of an endpoint, which responds with its name. It is live until
// the balancer releases it.
func (p *plane) serve(ctx context.Context, t discover.Target) layer.Service[string, string] {
	at := t.Endpoint.Addr.Addr().String()
	p.mu.Lock()
	p.live[at] = true
	p.mu.Unlock()
	context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.live, at)
	})
	return layer.Func[string, string](func(context.Context, string) (string, error) { return at, nil })
}

// services are the balancers of a program: one for each target, released after a minute
// without requests. A request names its target, and a response the endpoint.
func (p *plane) services(ctx context.Context, r resolve.Resolver) layer.Service[string, string] {
	targets := layer.NewCache(ctx, func(ctx context.Context, target string) layer.Service[string, string] {
		return layer.NewStack[string, string]().Queue(10, 3*time.Second).Service(balance.Resolve(ctx, r, balance.Config{Target: target}, p.serve))
	}, layer.CachePolicy{IdleTimeout: time.Minute})
	return targets.Router(func(target string) (string, error) { return target, nil })
}

// source resolves by the controller.
func (p *plane) source(b resolve.Backoff) resolve.Resolver {
	source := linkerd.New(p.conn, linkerd.WithBackoff(b), linkerd.WithStreamLimits(linkerd.Limits{}))
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		return source.Resolve(context.WithValue(ctx, targetKey{}, target), target)
	})
}

func (p *plane) attempts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.opened)
}
