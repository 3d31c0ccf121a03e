package httplayer

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// roads is a dialler that takes its time, and counts what is open.
type roads struct {
	by    func(context.Context, string, string) (net.Conn, error)
	takes time.Duration

	mu                sync.Mutex
	dials, open, most int
}

func (r *roads) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	r.dials++
	r.mu.Unlock()
	time.Sleep(r.takes)
	conn, err := r.by(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	r.count(1)
	return &counting{Conn: conn, over: sync.OnceFunc(func() { r.count(-1) })}, nil
}

func (r *roads) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open += n
	r.most = max(r.most, r.open)
}

func (r *roads) state() (dials, open, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dials, r.open, r.most
}

type counting struct {
	net.Conn
	over func()
}

func (c *counting) Close() error {
	c.over()
	return c.Conn.Close()
}

// each runs a test in a bubble by each protocol.
func each(t *testing.T, test func(t *testing.T, ctx context.Context, h2 bool, protocol EndpointOption)) {
	for name, h2 := range map[string]bool{"http1": false, "h2": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				if h2 {
					test(t, ctx, h2, WithHTTP2())
				} else {
					test(t, ctx, h2, WithHTTP1())
				}
			})
		})
	}
}

func TestEndpointAgeUnderSteadyTraffic(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		r := &roads{by: h.network.DialContext, takes: 700 * time.Millisecond}
		e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		connectNow(ctx, t, e)
		began := time.Now()
		for time.Since(began) < time.Hour {
			at := time.Now()
			require.NoError(t, get(ctx, e, "/"))
			require.Equal(t, at, time.Now(), "it waited")
			require.NoError(t, layer.Poll[*http.Request, *http.Response](e))
			require.Less(t, e.Describe().State.Get("age"), 69*time.Second)
			time.Sleep(2 * time.Second)
		}
		dials, open, most := r.state()
		// An age, and the time until that is noticed, are about a minute.
		assert.InDelta(t, 60, dials, 4)
		assert.Equal(t, 1, open)
		assert.Equal(t, 2, most)
		assert.Equal(t, dials-1, e.Describe().State.Get("aged_out"))
		assert.Nil(t, e.Describe().State.Get("successor_error"))
	})
}

// whoami answers with the name of the connection that a request came by; under
// /stream it does so for every line that it gets.
func whoami(w http.ResponseWriter, r *http.Request) {
	fullDuplex(w)
	say(w, r.RemoteAddr)
	if r.URL.Path != "/stream" {
		return
	}
	flush(w)
	pipe(flushing{w}, r.Body)
}

type flushing struct{ http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	defer flush(f.ResponseWriter)
	return f.ResponseWriter.Write(p)
}

// talk is a stream that is open.
type talk struct {
	in   *io.PipeWriter
	rsp  *http.Response
	name string
}

func openTalk(ctx context.Context, t *testing.T, e *Endpoint) *talk {
	t.Helper()
	body, in := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web/stream", body)
	require.NoError(t, err)
	rsp, err := e.Call(ctx, req)
	require.NoError(t, err)
	s := &talk{in: in, rsp: rsp}
	s.name = s.hear(t, len("127.0.0.1:49152"))
	return s
}

func (s *talk) hear(t *testing.T, n int) string {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(s.rsp.Body, b)
	require.NoError(t, err)
	return string(b)
}

func (s *talk) say(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(s.in, text)
	require.NoError(t, err)
	require.Equal(t, text, s.hear(t, len(text)))
}

func (s *talk) end(t *testing.T) {
	t.Helper()
	require.NoError(t, s.in.Close())
	assert.Empty(t, read(t, s.rsp))
}

// name asks for the name of the connection in use.
func name(ctx context.Context, t *testing.T, e *Endpoint) string {
	t.Helper()
	rsp, err := e.Call(ctx, request(t, http.MethodGet, "http://web/", ""))
	require.NoError(t, err)
	return read(t, rsp)
}

func TestEndpointAgeLetsStreamsFinish(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(whoami)
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(h.network.DialContext), WithMaxConnAge(time.Minute))
		long := openTalk(ctx, t, e)
		time.Sleep(50 * time.Second)
		assert.Equal(t, long.name, name(ctx, t, e), "not old yet")
		time.Sleep(time.Hour)
		assert.Equal(t, 1, e.Describe().State.Get("connections"), "without requests there is no need of another")
		assert.Equal(t, long.name, name(ctx, t, e), "the one that finds out goes by the old one")
		synctest.Wait()
		assert.NotEqual(t, long.name, name(ctx, t, e))
		s := e.Describe().State
		assert.Equal(t, 2, s.Get("connections"))
		assert.Equal(t, 1, s.Get("in_flight"))
		assert.Equal(t, 1, s.Get("aged_out"))
		assert.Equal(t, time.Duration(0), s.Get("age"))

		long.say(t, "still here")
		time.Sleep(time.Hour)
		long.say(t, "and here")
		long.end(t)
		synctest.Wait()
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
}

func TestEndpointAgeOfAnHTTP1ConnectionInUse(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(whoami)
		r := &roads{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP1(), WithIdleTimeout(time.Hour), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		old := name(ctx, t, e)
		time.Sleep(2 * time.Minute)
		long := openTalk(ctx, t, e)
		assert.Equal(t, old, long.name)
		synctest.Wait()
		assert.Equal(t, 1, e.Describe().State.Get("idle"), "the successor is there")
		assert.Equal(t, 1, e.Describe().State.Get("aged_out"))
		time.Sleep(time.Second)
		assert.Equal(t, time.Second, e.Describe().State.Get("age"))
		next := name(ctx, t, e)
		assert.NotEqual(t, old, next)
		long.say(t, "still here")
		long.end(t)
		synctest.Wait()
		dials, open, most := r.state()
		assert.Equal(t, []int{2, 1, 2}, []int{dials, open, most})
		assert.Equal(t, next, name(ctx, t, e))
	})
}

func TestEndpointAgeWhileNobodyCanConnect(t *testing.T) {
	for what, off := range map[string]error{"refused": syscall.ECONNREFUSED, "silent": errSilence} {
		t.Run(what, func(t *testing.T) {
			each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
				h := newHost(ctx, 0)
				s := &switched{network: &h.network}
				e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(s.DialContext), WithMaxConnAge(time.Minute),
					WithBackoff(layer.Backoff{Min: time.Second, Max: 8 * time.Second}))
				connectNow(ctx, t, e)
				s.set(off)
				for range 300 { // 150 s
					at := time.Now()
					require.NoError(t, get(ctx, e, "/"))
					require.Equal(t, at, time.Now(), "it waited")
					require.NoError(t, layer.Poll[*http.Request, *http.Response](e))
					time.Sleep(time.Second / 2)
				}
				began := s.attempts()[1:] // without the first, which succeeded
				patience := time.Duration(0)
				if off == errSilence {
					patience = time.Second
				}
				want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 8 * time.Second}
				require.Greater(t, len(began), len(want))
				for i := range want {
					assert.Equal(t, want[i]+patience, began[i+1]-began[i], "gap %d", i)
				}
				state := e.Describe().State
				assert.Equal(t, "up", state.Get("link"))
				assert.Equal(t, 0, state.Get("aged_out"))
				assert.NotEmpty(t, state.Get("successor_error"))
				assert.Greater(t, state.Get("age"), 2*time.Minute)

				s.set(nil)
				for range 20 {
					require.NoError(t, get(ctx, e, "/"))
					time.Sleep(time.Second / 2)
				}
				state = e.Describe().State
				assert.Equal(t, 1, state.Get("aged_out"))
				assert.Equal(t, 1, state.Get("connections"))
				assert.Nil(t, state.Get("successor_error"))
				assert.LessOrEqual(t, state.Get("age"), 10*time.Second)
			})
		})
	}
}

func TestEndpointAgeMakesOneSuccessorAtATime(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, h2 bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		r := &roads{by: h.network.DialContext, takes: 500 * time.Millisecond}
		e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithIdleTimeout(time.Hour), WithDialContext(r.DialContext), WithMaxConnAge(time.Minute))
		const callers = 10
		burst := func() {
			errs := make(chan error, callers)
			for range callers {
				go func() { errs <- get(ctx, e, "/hold") }()
			}
			time.Sleep(time.Second)
			h.release()
			for range callers {
				require.NoError(t, <-errs)
			}
			synctest.Wait()
		}
		conns := callers
		if h2 {
			conns = 1
		}
		burst()
		dials, open, _ := r.state()
		assert.Equal(t, []int{conns, conns}, []int{dials, open})
		time.Sleep(2 * time.Minute)
		burst()
		dials, open, most := r.state()
		assert.Equal(t, []int{conns + 1, conns, conns + 1}, []int{dials, open, most})
	})
}

func TestEndpointAgeMovesTrafficToNewBackends(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		const clients = 10
		one, two := newHost(ctx, 0), newHost(ctx, 0)
		var both atomic.Bool
		var turn atomic.Int32
		// The virtual address: one backend at first, then two in turn.
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			if both.Load() && turn.Add(1)%2 == 0 {
				return two.network.DialContext(ctx, network, addr)
			}
			return one.network.DialContext(ctx, network, addr)
		}
		ageing, staying := make([]*Endpoint, clients), make([]*Endpoint, clients)
		for i := range clients {
			ageing[i] = NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(dial), WithMaxConnAge(time.Minute))
			staying[i] = NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(dial))
		}
		run := func(of []*Endpoint, d time.Duration) (first, second int64) {
			first, second = one.served.Load(), two.served.Load()
			for began := time.Now(); time.Since(began) < d; time.Sleep(2 * time.Second) {
				for _, e := range of {
					require.NoError(t, get(ctx, e, "/"))
				}
			}
			return one.served.Load() - first, two.served.Load() - second
		}
		for _, of := range [][]*Endpoint{ageing, staying} {
			both.Store(false)
			_, second := run(of, 10*time.Second)
			require.Zero(t, second)
			both.Store(true)
			run(of, 70*time.Second)
			first, second := run(of, 4*time.Minute)
			share := float64(second) / float64(first+second)
			if &of[0] == &ageing[0] {
				assert.InDelta(t, 0.5, share, 0.2)
			} else {
				assert.Zero(t, share, "which shows that it was the age")
			}
		}
	})
}

func TestEndpointAgeUnderLoad(t *testing.T) {
	// Real sockets, real time, and connections that are old at once.
	addr := serve(t, http.HandlerFunc(small))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		r := &roads{by: new(net.Dialer).DialContext}
		e := endpoint(t, addr, protocol, WithMaxConns(4), WithMaxConnAge(time.Second), WithDialContext(r.DialContext))
		e.opts.maxAge = 2 * time.Millisecond
		connectNow(t.Context(), t, e)
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 300 {
					if err := get(t.Context(), e, "/"); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		callers.Wait()
		dials, _, _ := r.state()
		assert.Greater(t, dials, 4)
		assert.Positive(t, e.Describe().State.Get("aged_out"))
		settled := func() bool {
			_, open, _ := r.state()
			return open == e.Describe().State.Get("connections") && open <= 5
		}
		assert.Eventually(t, settled, 20*time.Second, time.Millisecond, "nothing is left open")
	})
}

func TestAgeJitter(t *testing.T) {
	const n, d = 10000, time.Hour
	limits := make([]float64, n)
	sum := 0.0
	for i := range limits {
		limits[i] = float64(newAge(d).limit) / float64(d)
		sum += limits[i]
	}
	slices.Sort(limits)
	assert.GreaterOrEqual(t, limits[0], 0.9)
	assert.LessOrEqual(t, limits[n-1], 1.1)
	assert.InDelta(t, 1, sum/n, 0.005)
	for tenth := range 10 { // each holds as many as the others
		assert.InDelta(t, 0.9+0.02*float64(tenth), limits[tenth*n/10], 0.01)
	}
}

func TestAgeLimits(t *testing.T) {
	assert.Equal(t, age{}, newAge(0), "the clock was read for nothing")
	assert.False(t, (&age{}).over())
	assert.False(t, (&age{since: time.Now(), limit: time.Hour}).over())
	assert.True(t, (&age{since: time.Now().Add(-time.Second), limit: time.Second}).over())
	long := newAge(math.MaxInt64)
	assert.Positive(t, long.limit)
	for given, want := range map[time.Duration]time.Duration{
		-1: -1, 0: 0, 1: time.Second, time.Second: time.Second, time.Minute: time.Minute,
	} {
		assert.Equal(t, want, newEndpointOptions("a:1", []EndpointOption{WithMaxConnAge(given)}).maxAge, "%v", given)
	}
}

func TestEndpointAgeIsOffByDefault(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		r := &roads{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(r.DialContext))
		for range 500 {
			require.NoError(t, get(ctx, e, "/"))
			time.Sleep(2 * time.Second)
		}
		dials, _, _ := r.state()
		assert.Equal(t, 1, dials)
		for _, key := range []string{"age", "aged_out", "successor_error"} {
			assert.Nil(t, e.Describe().State.Get(key))
		}
		assert.NotContains(t, fmt.Sprint(e.Describe()), "age")
	})
}
