package httplayer

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// stalls sends a head, with /body a piece of a body, and then nothing.
func stalls(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/body" {
		say(w, "half of it")
		flush(w)
	}
	<-r.Context().Done()
}

func TestE2ETimeLimits(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		bubble(t, func(t *testing.T, ctx context.Context) {
			h := newHost(ctx, 0)
			h.srv.Handler = http.HandlerFunc(stalls)
			limits(t, NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext)))
		})
	})
}

func limits(t *testing.T, e *Endpoint) {
	t.Helper()
	const limit = 30 * time.Millisecond
	for name, tt := range map[string]struct {
		stack layer.Stack[*http.Request, *http.Response]
		path  string
		want  error
	}{
		"total, before the head": {NewStack().Timeout(limit), "/head", layer.ErrTimeout},
		"total, in the body":     {NewStack().Timeout(time.Second), "/body", layer.ErrTimeout},
		"head":                   {NewStack().ResponseHeaderTimeout(limit), "/head", layer.ErrResponseHeaderTimeout},
		"silence":                {NewStack().IdleTimeout(limit), "/body", layer.ErrIdleTimeout},
		"silence under others":   {NewStack().Timeout(time.Minute).Limit(1).IdleTimeout(limit).Limit(1), "/body", layer.ErrIdleTimeout},
	} {
		svc := tt.stack.Service(e)
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web"+tt.path, ""))
		if tt.path == "/body" {
			require.NoError(t, err, name)
			var b []byte
			b, err = io.ReadAll(rsp.Body)
			assert.Equal(t, "half of it", string(b), name)
			assert.NoError(t, rsp.Body.Close(), name)
		}
		assert.ErrorIs(t, err, tt.want, name)
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		status, _ := StatusFromError(err)
		assert.Equal(t, http.StatusGatewayTimeout, status, name)
	}
	// A head in time is not bounded after that.
	svc := NewStack().ResponseHeaderTimeout(time.Minute).Service(e)
	rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/body", ""))
	require.NoError(t, err)
	assert.NoError(t, rsp.Body.Close())
	synctest.Wait()
	assert.Equal(t, 0, e.Describe().State.Get("in_flight"))
}

func TestE2EBreaker(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		var well atomic.Bool
		server := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
			if !well.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
			say(w, "x")
		}}
		h.srv.Handler = server
		svc := NewStack().Breaker(layer.BreakerPolicy{
			ConsecutiveFailures: 3, Backoff: layer.Backoff{Min: time.Second, Max: time.Second},
		}).Service(NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext)))
		for range 3 {
			rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, 500, rsp.StatusCode)
		}
		_, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.ErrorIs(t, err, layer.ErrNotReady)
		assert.EqualValues(t, 3, server.n.Load(), "it is open")
		well.Store(true)
		require.NoError(t, svc.Ready(t.Context()), "until it is time for a probe")
		for range 3 {
			rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			read(t, rsp)
		}
		assert.EqualValues(t, 6, server.n.Load(), "and after that it is closed")
	})
}

// A gRPC status in trailers opens the breaker, although the response has the status 200.
func TestE2EBreakerTrailers(t *testing.T) {
	svc := NewStack().Breaker(layer.BreakerPolicy{ConsecutiveFailures: 2, Backoff: layer.Backoff{Min: time.Hour, Max: time.Hour}}).
		Service(endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			say(w, "message")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "14")
		})), WithHTTP2()))
	for range 2 {
		rsp, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "x"))
		require.NoError(t, err)
		read(t, rsp)
	}
	_, err := svc.Call(t.Context(), request(t, http.MethodPost, "http://web/", "x"))
	assert.ErrorIs(t, err, layer.ErrNotReady)
}

func TestE2EDrainWaitsForBodies(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		letGo := make(chan struct{})
		d := layer.NewDrainer()
		svc := NewStack().Drain(d).Service(endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			flush(w)
			<-letGo
			say(w, "the rest")
		})), protocol))
		proxy := serve(t, Handler(svc))
		rsp, err := client(t, isH2(protocol)).Get("http://" + proxy)
		require.NoError(t, err)
		done, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, d.Drain(done), context.Canceled, "a body is open")
		assert.EqualValues(t, 1, d.InFlight())
		refused, err := client(t, false).Get("http://" + proxy)
		require.NoError(t, err)
		read(t, refused)
		assert.Equal(t, 503, refused.StatusCode)
		assert.True(t, refused.Close)
		close(letGo)
		assert.Equal(t, "the rest", read(t, rsp))
		assert.NoError(t, d.Drain(t.Context()))
	})
}

func isH2(opt EndpointOption) bool {
	return newEndpointOptions("", []EndpointOption{opt}).protocol == http2
}

// The slot of a response is released when its body is closed unread.
func TestE2ELimitAbandonedBodies(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			say(w, strings.Repeat("x", 1<<20))
		})), protocol)
		svc := NewStack().Limit(1).Service(e)
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			rsp, err := svc.Call(ctx, request(t, http.MethodGet, "http://web/", ""))
			require.NoError(t, err)
			_, err = svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
			require.ErrorIs(t, err, layer.ErrNotReady)
			cancel() // the body is never closed
			assert.NoError(t, svc.Ready(t.Context()))
			_ = rsp
		}
	})
}
