package httplayer

import (
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slowDialer is a dial function with a delay, which counts open connections.
type slowDialer struct {
	by    func(context.Context, string, string) (net.Conn, error)
	takes time.Duration

	mu                sync.Mutex
	dials, open, most int
}

func (r *slowDialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
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

func (r *slowDialer) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open += n
	r.most = max(r.most, r.open)
}

func (r *slowDialer) state() (dials, open, most int) {
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

func (s *talk) writeLine(t *testing.T, text string) {
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

func TestEndpointAgeFinishesStreams(t *testing.T) {
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

		long.writeLine(t, "still here")
		time.Sleep(time.Hour)
		long.writeLine(t, "and here")
		long.end(t)
		synctest.Wait()
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
}

func TestEndpointAgeReachesNewBackends(t *testing.T) {
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

func TestAgeJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, d = 10000, time.Hour
		limits := make([]float64, n)
		sum := 0.0
		for i := range limits {
			limits[i] = float64(time.Until(newAge(d).end)) / float64(d)
			sum += limits[i]
		}
		slices.Sort(limits)
		assert.GreaterOrEqual(t, limits[0], 0.9)
		assert.LessOrEqual(t, limits[n-1], 1.1)
		assert.InDelta(t, 1, sum/n, 0.005)
		for tenth := range 10 { // each holds as many as the others
			assert.InDelta(t, 0.9+0.02*float64(tenth), limits[tenth*n/10], 0.01)
		}
	})
}

func TestAgeLimits(t *testing.T) {
	assert.Equal(t, age{}, newAge(0), "the clock was read for nothing")
	assert.False(t, (&age{}).over())
	assert.False(t, (&age{time.Now().Add(time.Hour)}).over())
	assert.True(t, (&age{time.Now()}).over())
	long := newAge(math.MaxInt64)
	assert.False(t, long.over())
	for given, want := range map[time.Duration]time.Duration{
		-1: -1, 0: 0, 1: time.Second, time.Second: time.Second, time.Minute: time.Minute,
	} {
		assert.Equal(t, want, newEndpointOptions("a:1", []EndpointOption{WithMaxConnAge(given)}).maxAge, "%v", given)
	}
}
