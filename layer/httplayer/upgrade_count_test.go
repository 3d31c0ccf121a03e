package httplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

func upgradeRequest(t testing.TB) *http.Request {
	t.Helper()
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	return req
}

// Upgrades do not exceed the maximum number of connections.
func TestUpgradeMaxConns(t *testing.T) {
	r := &slowDialer{by: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			switchToEcho(w, r)
		}
	}))
	e := endpoint(t, addr, WithMaxConns(2), WithDialContext(r.DialContext))
	var clients sync.WaitGroup
	for n := range 6 {
		clients.Go(func() {
			for done := 0; done < 100; {
				if !assert.NoError(t, e.Ready(t.Context())) {
					return
				}
				req := request(t, http.MethodGet, "http://web/", "")
				if n%2 == 0 {
					req = upgradeRequest(t)
				}
				rsp, err := e.Call(t.Context(), req)
				if errors.Is(err, layer.ErrNotReady) {
					continue // another connection used it first
				}
				if !assert.NoError(t, err) {
					return
				}
				if both, ok := rsp.Body.(io.ReadWriter); ok {
					assert.True(t, hears(both, "hello"))
				}
				assert.NoError(t, rsp.Body.Close())
				done++
			}
		})
	}
	clients.Wait()
	_, _, most := r.state()
	assert.LessOrEqual(t, most, 2)
}
