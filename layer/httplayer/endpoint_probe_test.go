package httplayer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// An idle HTTP/1.1 connection that uses the last place does not prevent a probe.
func TestEndpointProbeReplacesIdleConnection(t *testing.T) {
	var bad atomic.Bool
	once := errors.New("once")
	e := endpoint(t, serve(t, http.HandlerFunc(shapes)), WithMaxConns(1), WithKeepVersion(),
		WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
			if bad.Load() {
				return nil, once
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}))
	require.NoError(t, get(t.Context(), e, "/"))
	require.Equal(t, 1, e.Describe().State.Get("idle"))
	bad.Store(true)
	req, _ := byTwo(t, false)
	_, err := e.Call(t.Context(), req)
	require.ErrorIs(t, err, once)
	bad.Store(false)
	for _, svc := range []Service{e, SingleEndpoint(e)} {
		readyWithin(t, svc)
	}
	rsp, err := e.Call(t.Context(), req)
	require.NoError(t, err)
	assert.Equal(t, 2, rsp.ProtoMajor)
	read(t, rsp)
	require.NoError(t, get(t.Context(), e, "/"))
}

// After a failed connection for HTTP/1.1, the probe uses HTTP/1.1, even if an HTTP/2 connection works.
func TestEndpointProbesFailedProtocol(t *testing.T) {
	var bad atomic.Bool
	once := errors.New("once")
	e := endpoint(t, serve(t, http.HandlerFunc(shapes)), WithKeepVersion(), WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if bad.Load() {
			return nil, once
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}))
	byH2 := func() {
		two := request(t, "GET", "http://web/", "")
		two.ProtoMajor = 2
		rsp, err := e.Call(t.Context(), two)
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, 2, rsp.ProtoMajor)
	}
	one := func() (*http.Response, error) {
		return e.Call(t.Context(), request(t, "GET", "http://web/", ""))
	}
	byH2()
	bad.Store(true)
	_, err := one()
	require.ErrorIs(t, err, once)
	require.ErrorIs(t, err, layer.ErrNotReady)
	byH2() // succeeds, and makes HTTP/2 the last requested protocol
	bad.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, e.Ready(ctx))
	rsp, err := one()
	require.NoError(t, err)
	read(t, rsp)
	byH2()
}

// A probe does not use a connection of a server that has sent GOAWAY and still owes a
// response. It makes a new connection at once.
func TestEndpointProbesDuringGoAway(t *testing.T) {
	answer := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	old := serveOn(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-answer
		}
	}))
	next := serve(t, http.HandlerFunc(shapes))
	var gone, back atomic.Bool
	once := errors.New("once")
	e := endpoint(t, l.Addr().String(), WithKeepVersion(), WithConnectTimeout(time.Hour), WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch {
		case back.Load():
			addr = next
		case gone.Load():
			return nil, once
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}))
	two, _ := byTwo(t, false)
	rsp, err := e.Call(t.Context(), two)
	require.NoError(t, err)

	gone.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- old.Shutdown(context.WithoutCancel(t.Context())) }()
	defer func() {
		close(answer)
		read(t, rsp)
		assert.NoError(t, <-ended)
	}()
	require.Eventually(t, func() bool { return !e.h2.serves() }, patience, time.Millisecond)
	require.ErrorIs(t, get(t.Context(), e, "/"), once)
	back.Store(true)

	readyWithin(t, e)
	two, _ = byTwo(t, false)
	again, err := e.Call(t.Context(), two)
	require.NoError(t, err)
	read(t, again)
	require.NoError(t, get(t.Context(), e, "/"))
}
