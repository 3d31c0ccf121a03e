package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// bubble runs a test on the clock and the network of a synctest bubble.
func bubble(t *testing.T, test func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer synctest.Wait()
		defer cancel()
		test(t, ctx)
	})
}

// switched is a network that can be switched off. Connections then get no reply or are
// refused.
type switched struct {
	network *layertest.Network
	mu      sync.Mutex
	off     error // what dialling comes to; errSilence: nothing
	dials   []time.Duration
	began   time.Time
}

var errSilence = errors.New("nothing answers")

func (s *switched) set(off error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = off
}

func (s *switched) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.dials = append(s.dials, time.Since(s.began))
	off := s.off
	s.mu.Unlock()
	switch {
	case errors.Is(off, errSilence):
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	case off != nil:
		return nil, &net.OpError{Op: "dial", Net: network, Err: off}
	}
	return s.network.DialContext(ctx, network, addr)
}

func (s *switched) attempts() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.dials...)
}

// get calls svc and returns what came of it.
func get(ctx context.Context, svc Service, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web.default"+path, nil)
	if err != nil {
		return err
	}
	rsp, err := svc.Call(ctx, req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, rsp.Body)
	return errors.Join(err, rsp.Body.Close())
}

func TestEndpointReadyBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		s := &switched{network: &h.network, off: syscall.ECONNREFUSED}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(s.DialContext),
			WithBackoff(layer.Backoff{Min: 100 * time.Millisecond, Max: time.Second}))
		assert.NoError(t, e.Ready(ctx), "nothing has failed yet")
		assert.Empty(t, s.attempts(), "and Ready connects only after a failure")
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)

		// Many wait; one tries.
		ready := make(chan error, 20)
		for range cap(ready) {
			go func() { ready <- e.Ready(ctx) }()
		}
		time.Sleep(3600 * time.Millisecond)
		ms := time.Millisecond
		assert.Equal(t, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 2500 * ms, 3500 * ms}, s.attempts())
		synctest.Wait()

		err := get(ctx, e, "/")
		var where *layer.Error
		require.ErrorAs(t, err, &where)
		assert.Equal(t, "10.0.0.1:80", where.Endpoint)
		assert.ErrorIs(t, err, layer.ErrNotReady)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Len(t, s.attempts(), 7, "a call during the back-off connects to nothing")

		s.set(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		for range cap(ready) {
			require.NoError(t, <-ready)
		}
		assert.Len(t, s.attempts(), 8)
		require.NoError(t, get(ctx, e, "/"))
		assert.Len(t, s.attempts(), 8, "the connection of Ready was not used")

		// After a success the backoff starts from its minimum again.
		time.Sleep(time.Minute)
		assert.NoError(t, layer.Poll[*http.Request, *http.Response](e), "without a connection it is ready all the same")
		assert.Zero(t, e.Describe().State.Get("connections"))
		s.set(syscall.ECONNREFUSED)
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
		assert.Equal(t, "100ms", fmt.Sprint(e.Describe().State.Get("retry_in")))
	})
}

func TestEndpointCallAfterBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
			s := &switched{network: &h.network, off: errSilence}
			e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(s.DialContext), WithBackoff(layer.Backoff{Min: 2 * time.Second}))
			began := time.Now()
			err := get(ctx, e, "/")
			assert.ErrorIs(t, err, layer.ErrNotReady)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, time.Second, time.Since(began), "the time to connect in")
			assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
			assert.Len(t, s.attempts(), 1)
			time.Sleep(2 * time.Second)

			// Now one may try; the others are refused meanwhile.
			first := make(chan error, 1)
			go func() { first <- get(ctx, e, "/") }()
			synctest.Wait()
			began = time.Now()
			for range 10 {
				assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
			}
			assert.Zero(t, time.Since(began))
			assert.ErrorIs(t, <-first, layer.ErrNotReady)
			assert.Len(t, s.attempts(), 2)

			s.set(nil)
			time.Sleep(4 * time.Second)
			assert.NoError(t, get(ctx, e, "/"))
		}
	})
}

func TestEndpointConcurrentFailuresCountOnce(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		s := &switched{off: errSilence}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(s.DialContext), WithBackoff(layer.Backoff{Min: 100 * time.Millisecond}))
		errs := make(chan error, 50)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/") }()
		}
		for range cap(errs) {
			assert.ErrorIs(t, <-errs, layer.ErrNotReady)
		}
		assert.Len(t, s.attempts(), 50)
		assert.Equal(t, 1, e.Describe().State.Get("failures"))
		assert.Equal(t, 0, e.Describe().State.Get("connections"))
	})
}

func TestEndpointCallerCanceledDuringDial(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
			slow := func(ctx context.Context, network, addr string) (net.Conn, error) {
				time.Sleep(500 * time.Millisecond)
				return h.network.DialContext(ctx, network, addr)
			}
			c := &counted{by: slow}
			e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(c.DialContext))
			began := time.Now()
			hurried, cancel := context.WithTimeoutCause(ctx, 100*time.Millisecond, errSilence)
			body := &asked{Reader: strings.NewReader("hello")}
			req, _ := http.NewRequest(http.MethodPost, "http://web/", body)
			_, err := e.Call(hurried, req)
			cancel()
			assert.ErrorIs(t, err, layer.ErrNotReady)
			assert.ErrorIs(t, err, errSilence)
			assert.Equal(t, 100*time.Millisecond, time.Since(began))
			assert.Zero(t, body.reads.Load()+body.closes.Load())

			// The connection is used by the next request.
			time.Sleep(time.Second)
			began = time.Now()
			assert.NoError(t, get(ctx, e, "/"))
			assert.Zero(t, time.Since(began))
			assert.EqualValues(t, 1, c.dials.Load())
		}
	})
}

func TestEndpointH2ConnectsOnceForBurst(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		const streams = 4
		h := newHost(ctx, streams)
		c := &counted{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(c.DialContext))
		errs := make(chan error, 50)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/hold") }()
		}
		synctest.Wait()
		assert.EqualValues(t, 1, c.dials.Load())
		assert.EqualValues(t, streams, h.held.Load(), "what the server allows, from the first request on")
		assert.Equal(t, streams, e.Describe().State.Get("in_flight"))
		for range cap(errs) - streams {
			err := <-errs
			assert.ErrorIs(t, err, layer.ErrNotReady)
			assert.ErrorContains(t, err, "at capacity")
		}
		ready := make(chan error, 1)
		go func() { ready <- e.Ready(ctx) }()
		synctest.Wait()
		assert.Empty(t, ready)
		h.release()
		assert.NoError(t, <-ready)
		for range streams {
			assert.NoError(t, <-errs)
		}
		assert.EqualValues(t, 1, c.dials.Load())
	})
}

func TestEndpointMaxConns(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		c := &counted{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithMaxConns(2), WithDialContext(c.DialContext))
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/hold") }()
		}
		synctest.Wait()
		assert.ErrorIs(t, layer.Poll[*http.Request, *http.Response](e), layer.ErrNotReady)
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
		h.release()
		assert.NoError(t, <-errs)
		assert.NoError(t, <-errs)
		assert.NoError(t, layer.Poll[*http.Request, *http.Response](e))
		for range 5 {
			assert.NoError(t, get(ctx, e, "/"))
		}
		assert.EqualValues(t, 2, c.dials.Load())
	})
}

func TestEndpointIdleTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		c := &counted{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(c.DialContext))
		conns := func() any { synctest.Wait(); return e.Describe().State.Get("connections") }
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/hold") }()
		}
		synctest.Wait()
		h.release()
		for range cap(errs) {
			assert.NoError(t, <-errs)
		}
		assert.Equal(t, 3, conns())
		// One of them is used every second; the others are not.
		for range 5 {
			time.Sleep(time.Second)
			assert.NoError(t, get(ctx, e, "/"))
		}
		assert.Equal(t, 1, conns())
		time.Sleep(3*time.Second - 1)
		assert.Equal(t, 1, conns())
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 0, conns())
		assert.EqualValues(t, 3, c.dials.Load())
		assert.NoError(t, get(ctx, e, "/"))
		assert.EqualValues(t, 4, c.dials.Load())
	})
}

func TestEndpointKeepsH2Connection(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(h.network.DialContext))
		connectNow(ctx, t, e)
		time.Sleep(time.Hour)
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
}

func TestEndpointUnderQueue(t *testing.T) {
	// tests.md A26: a request that arrives while the endpoint is away is served late.
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		s := &switched{network: &h.network, off: syscall.ECONNREFUSED}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(s.DialContext))
		svc := NewStack().Queue(10, 3*time.Second).Service(e)
		time.AfterFunc(1200*time.Millisecond, func() { s.set(nil) })
		began := time.Now()
		require.NoError(t, get(ctx, svc, "/"))
		assert.InDelta(t, 1500, time.Since(began).Milliseconds(), 200)
	})
}
