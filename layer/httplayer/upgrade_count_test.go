package httplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func upgradeRequest(t testing.TB) *http.Request {
	t.Helper()
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	return req
}

// For net/http a connection has ended before RoundTrip returns with its upgrade.
// Nobody else gets its place.
func TestAnUpgradeKeepsItsPlace(t *testing.T) {
	for name, tt := range map[string]struct {
		served   http.HandlerFunc
		upgraded bool
	}{
		"upgraded": {switchToEcho, true},
		"refused":  {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }, false},
		"broken":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				h := newHost(ctx, 0)
				h.srv.Handler = tt.served
				e := NewEndpoint(ctx, "10.0.0.1:80", WithMaxConns(1), WithDialContext(h.network.DialContext))
				c, err := e.h1.dial(ctx, originForm)
				require.NoError(t, err)
				require.NoError(t, c.cc.Reserve())
				rsp, err := e.h1.roundTrip(c, e.outgoing(ctx, upgradeRequest(t)))
				require.Equal(t, name == "broken", err != nil)
				synctest.Wait() // net/http has said that it ended
				require.Error(t, c.cc.Err())
				assert.Equal(t, tt.upgraded, e.Describe().State.Get("connections") == 1)
				assert.Equal(t, !tt.upgraded, e.h1.hasSlot())
				if err != nil {
					return
				}
				e.h1.deliver(ctx, c, rsp)
				assert.Equal(t, tt.upgraded, e.Describe().State.Get("connections") == 1)
				require.NoError(t, rsp.Body.Close())
				assert.Equal(t, 0, e.Describe().State.Get("connections"))
			})
		})
	}
}

// However many want one, there are no more connections than there may be.
func TestUpgradesStayBelowMaxConns(t *testing.T) {
	r := &roads{by: func(ctx context.Context, network, addr string) (net.Conn, error) {
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
					continue // somebody else was there first
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
