package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// spread sends a request to the first of its endpoints that it has not been
// to, as a balancer would.
type spread []*Endpoint

func (s spread) Ready(context.Context) error { return nil }

func (s spread) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	tries := layer.AttemptsFromContext(ctx)
	for _, e := range s {
		if !tries.Has(e) {
			tries.Add(e)
			return e.Call(ctx, r)
		}
	}
	return s[len(s)-1].Call(ctx, r)
}

// visited is a server that counts the requests that reached it.
type visited struct {
	http.HandlerFunc
	n atomic.Int32
}

func (c *visited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.n.Add(1)
	c.HandlerFunc(w, r)
}

// retrying is a stack of one Retry over two servers.
func retrying(t *testing.T, protocol EndpointOption, policy RetryPolicy, a, b string) Service {
	t.Helper()
	policy.Backoff = layer.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	leaf := spread{endpoint(t, a, protocol), endpoint(t, b, protocol)}
	return NewStack().Retry(policy).Service(leaf)
}

func unavailable(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
	say(w, "not now")
}

func echoes(w http.ResponseWriter, r *http.Request) {
	fullDuplex(w)
	pipe(w, r.Body)
}

type policy = RetryPolicy

func TestE2ERetryOtherEndpoint(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		a, b := &visited{HandlerFunc: unavailable}, &visited{HandlerFunc: shapes}
		svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/length", ""))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.Equal(t, [2]int32{1, 1}, [2]int32{a.n.Load(), b.n.Load()})
		// With a body too.
		rsp, err = svc.Call(t.Context(), request(t, http.MethodPut, "http://web/echo", "hello again"))
		require.NoError(t, err)
		assert.Equal(t, "hello again", read(t, rsp))
		// Not a POST: what the server did with it is not known.
		rsp, err = svc.Call(t.Context(), request(t, http.MethodPost, "http://web/echo", "hello"))
		require.NoError(t, err)
		assert.Equal(t, 503, rsp.StatusCode)
		assert.Equal(t, "not now", read(t, rsp), "the response itself")
		// A POST with an idempotency key may be retried.
		req := request(t, http.MethodPost, "http://web/echo", "hello")
		req.Header.Set("Idempotency-Key", "1")
		rsp, err = svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
	})
}

func TestE2ERetryRejectedRequest(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{Budget: layer.NewBudget(0, -1, -1)}, refusedAddr(t), serve(t, b))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.EqualValues(t, 1, b.n.Load())
	})
}

func TestE2ERetrySentRequest(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		a := &visited{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}}
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
		_, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "hello"))
		require.Error(t, err)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Equal(t, [2]int32{1, 0}, [2]int32{a.n.Load(), b.n.Load()})
		// Idempotent requests are retried.
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPut, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
	})
}

func TestE2ERetryLargeBody(t *testing.T) {
	large := strings.Repeat("x", 100<<10)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for name, length := range map[string]int64{"known length": 100 << 10, "unknown length": -1} {
			a := &visited{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusServiceUnavailable)
				sayf(w, "%d", n)
			}}
			b := &visited{HandlerFunc: echoes}
			svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
			req := request(t, http.MethodPut, "http://web/", large)
			req.ContentLength = length
			rsp, err := svc.Call(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, 503, rsp.StatusCode, name)
			assert.Equal(t, "102400", read(t, rsp), name)
			assert.Zero(t, b.n.Load(), name)
		}
	})
}

// The response arrives before the end of the request body. The rest of the body is then sent only to
// the other server (linkerd2-proxy#3216).
func TestE2ERetryEarlyResponse(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		answered := make(chan struct{})
		a := &visited{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			fullDuplex(w)
			_, _ = io.ReadFull(r.Body, make([]byte, 5))
			unavailable(w, r)
			flush(w)
			close(answered)
		}}
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
		r, w := io.Pipe()
		go func() {
			say(w, "first")
			<-answered
			for range 20 {
				say(w, " and more")
			}
			w.Close()
		}()
		req := request(t, http.MethodPut, "http://web/", "")
		req.Body, req.ContentLength = r, -1
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, "first"+strings.Repeat(" and more", 20), read(t, rsp))
		assert.Equal(t, [2]int32{1, 1}, [2]int32{a.n.Load(), b.n.Load()})
	})
}

func TestE2EAttemptTimeout(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		t.Parallel()
		a := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body)
			<-r.Context().Done()
		}))
		// The second one is answered, unless that takes longer; then another is.
		svc := retrying(t, protocol, policy{AttemptTimeout: time.Second, MaxAttempts: 40}, a, serve(t, http.HandlerFunc(echoes)))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPut, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		svc = retrying(t, protocol, policy{AttemptTimeout: 100 * time.Millisecond, MaxAttempts: 2}, a, a)
		_, err = svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		assert.ErrorIs(t, err, layer.ErrAttemptTimeout)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
	})
}

func TestE2ERetryEmptyBudget(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		b := &visited{HandlerFunc: echoes}
		svc := retrying(t, protocol, policy{Budget: layer.NewBudget(0, -1, -1)}, serve(t, http.HandlerFunc(unavailable)), serve(t, b))
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.NoError(t, err)
		assert.Equal(t, 503, rsp.StatusCode)
		assert.Equal(t, "not now", read(t, rsp))
		assert.Zero(t, b.n.Load())
	})
}

func TestE2ERetryPushback(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		for field, value := range map[string]string{"Retry-After": "3600", "Grpc-Retry-Pushback-Ms": "-1"} {
			a := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(field, value)
				w.WriteHeader(http.StatusServiceUnavailable)
			}}
			b := &visited{HandlerFunc: echoes}
			svc := retrying(t, protocol, policy{}, serve(t, a), serve(t, b))
			rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, 503, rsp.StatusCode)
			assert.Zero(t, b.n.Load(), field)
		}
	})
}

// A request that expects 100 Continue is sent once, and its body only after the 100.
func TestE2ERetryExpectContinue(t *testing.T) {
	a := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }}
	b := &visited{HandlerFunc: echoes}
	svc := retrying(t, WithHTTP1(), policy{}, serve(t, a), serve(t, b))
	req, body := withBody(t, "hello")
	req.Method = http.MethodPut
	req.Header.Set("Expect", "100-continue")
	rsp, err := svc.Call(t.Context(), req)
	require.NoError(t, err)
	read(t, rsp)
	assert.Equal(t, 503, rsp.StatusCode)
	assert.Zero(t, body.reads.Load()+b.n.Load())
}

// A Retry forwards the body of an upgraded connection unchanged.
func TestE2ERetryUpgrade(t *testing.T) {
	addr := rawServer(t, func(_ int, conn net.Conn) {
		if _, err := http.ReadRequest(newRawH2(conn).in); err == nil {
			say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			pipe(conn, conn)
		}
	})
	svc := retrying(t, WithHTTP1(), policy{AttemptTimeout: patience}, addr, addr)
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	rsp, err := svc.Call(t.Context(), req)
	require.NoError(t, err)
	both, ok := rsp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	say(both, "hello")
	got := make([]byte, 5)
	_, err = io.ReadFull(both, got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	assert.NoError(t, both.Close())
}

// A body with GetBody is not buffered, so it may have any length.
func TestE2ERetryGetBody(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		svc := retrying(t, protocol, policy{}, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body)
			w.WriteHeader(http.StatusServiceUnavailable)
		})), serve(t, http.HandlerFunc(echoes)))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://web/", strings.NewReader(large))
		require.NoError(t, err)
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Len(t, read(t, rsp), len(large))
	})
}

// An injected fault is answered with its status. It does not count as a failure of an
// endpoint and is not retried.
func TestE2ERetryChaos(t *testing.T) {
	b := &visited{HandlerFunc: echoes}
	svc := NewStack().
		Breaker(layer.BreakerPolicy{ConsecutiveFailures: 1}).
		FaultInjection(FaultPolicy{TTL: time.Minute, Fraction: 1, Err: &StatusError{Code: http.StatusTeapot}}).
		Service(endpoint(t, serve(t, b)))
	proxy := serve(t, Handler(svc))
	for range 3 {
		rsp, err := client(t, false).Get("http://" + proxy)
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, http.StatusTeapot, rsp.StatusCode)
	}
	assert.Zero(t, b.n.Load())
}
