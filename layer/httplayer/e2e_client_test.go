package httplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// everything is a client's stack with all there is in it.
func everything(budget *layer.Budget) layer.Stack[*http.Request, *http.Response] {
	return NewStack().
		Drain(layer.NewDrainer()).
		Timeout(time.Minute).
		Retry(policy{Budget: budget, AttemptTimeout: patience, Backoff: layer.Backoff{Min: time.Millisecond, Max: time.Millisecond}}).
		Queue(100, patience).
		ResponseHeaderTimeout(patience).
		IdleTimeout(patience).
		Hedge(HedgePolicy{Budget: budget, MinSamples: 10}).
		Breaker(layer.BreakerPolicy{}).
		RateLimit(1e6, 1e6).
		Limit(50)
}

func wanderer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/stall":
		stalls(w, r)
	case "/moved":
		http.Redirect(w, r, "/echo", http.StatusTemporaryRedirect)
	case "/again":
		http.Redirect(w, r, "/again", http.StatusFound)
	default:
		w.Header().Set("Trailer", "Sum")
		echoes(w, r)
		w.Header().Set("Sum", "1")
	}
}

func TestE2EClientAllLayers(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		budget := layer.NewBudget(0, 0, 0)
		svc := everything(budget).Service(spread{endpoint(t, serve(t, http.HandlerFunc(wanderer)), protocol)})
		c := &http.Client{Transport: RoundTripper(svc)}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					rsp, err := c.Post("http://web/echo", "text/plain", strings.NewReader(strings.Repeat("x", 10_000)))
					if !assert.NoError(t, err) {
						return
					}
					b, err := io.ReadAll(rsp.Body)
					assert.NoError(t, err)
					assert.Len(t, b, 10_000)
					assert.NoError(t, rsp.Body.Close())
					assert.Equal(t, "1", rsp.Trailer.Get("Sum"))
				}
			})
		}
		all.Wait()
		rsp, err := c.Post("http://web/moved", "text/plain", strings.NewReader("hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp), "sent again to where it was redirected, by GetBody")
		assert.Equal(t, "/echo", rsp.Request.URL.Path)
		_, err = c.Get("http://web/again")
		assert.ErrorContains(t, err, "stopped after 10 redirects")
	})
}

func TestE2EClientTimeout(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(stalls)
		svc := everything(nil).Service(spread{NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext))})
		c := &http.Client{Transport: RoundTripper(svc), Timeout: 50 * time.Millisecond}
		_, err := c.Get("http://web/")
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())
		c.Timeout = 2 * time.Second // it covers the connecting too
		rsp, err := c.Get("http://web/body")
		require.NoError(t, err)
		_, err = io.ReadAll(rsp.Body)
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())
		rsp.Body.Close()
	})
}

func TestE2EClientCancels(t *testing.T) {
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		ctx, cancel := context.WithCancelCause(t.Context())
		svc := everything(nil).Service(spread{endpoint(t, serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel(errors.New("changed my mind"))
			<-r.Context().Done()
		})), protocol)})
		req := request(t, http.MethodGet, "http://web/", "").WithContext(ctx)
		_, err := (&http.Client{Transport: RoundTripper(svc)}).Do(req)
		require.Error(t, err)
		assert.ErrorContains(t, err, "changed my mind")
		assert.NotErrorIs(t, err, layer.ErrNotReady)
	})
}
