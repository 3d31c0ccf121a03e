package httplayer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A failed connection to the only address is answered at once.
func TestSingleEndpointFailsAtOnce(t *testing.T) {
	svc := SingleEndpoint(endpoint(t, refusedAddr(t)))
	for range 3 { // the first tries, the others hear of it
		require.NoError(t, svc.Ready(t.Context()))
		_, err := svc.Call(t.Context(), request(t, "GET", "http://web/", ""))
		require.NotErrorIs(t, err, layer.ErrNotReady)
		status, _ := StatusFromError(err)
		assert.Equal(t, http.StatusBadGateway, status)
	}
}

// A waiting Ready returns when the address is lost.
func TestSingleEndpointReadyAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		lost := errors.New("not any more")
		e := NewEndpoint(ctx, "192.0.2.1:80", WithMaxConns(1),
			WithDialContext(func(context.Context, string, string) (net.Conn, error) { return nil, lost }))
		e.used[0].Store(true)
		e.link.report(false, nil) // it was reached,
		require.True(t, e.h1.reserve())
		ready := make(chan error, 1)
		go func() { ready <- SingleEndpoint(e).Ready(ctx) }() // and is full;
		synctest.Wait()
		require.Empty(t, ready)
		e.link.report(false, lost) // the only connection is lost
		e.h1.forget()
		require.NoError(t, <-ready)
	})
}

// A request that the server did not process before it closed the connection is rejected, and a queue
// sends it again.
func TestSingleEndpointRejectsUnprocessed(t *testing.T) {
	addr := rawServer(t, func(n int, conn net.Conn) {
		c := newRawH2(conn)
		if c.preface() != nil {
			return
		}
		c.settings(100)
		for s := c.request(); s != 0; s = c.request() {
			if n == 0 {
				c.goAway(0)
				c.drain()
				return
			}
			c.respond(s, "ok")
		}
	})
	svc := NewStack().Queue(10, patience).Service(SingleEndpoint(endpoint(t, addr, WithHTTP2())))
	rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
	require.NoError(t, err)
	assert.Equal(t, "ok", read(t, rsp))
}
