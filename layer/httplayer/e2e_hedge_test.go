package httplayer

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The slower attempt is canceled. The body of the faster one can be read completely long after that
// (hedgedhttp#7: 3 965 bytes of 512 KiB).
func TestE2EHedge(t *testing.T) {
	whole := strings.Repeat("x", 512<<10)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		came, gone := make(chan struct{}), make(chan struct{})
		slow := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(came)
			<-r.Context().Done()
			close(gone)
		}))
		fast := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-came // the request that is canceled later
			say(w, whole)
		}))
		svc := NewStack().Hedge(HedgePolicy{MinDelay: 5 * time.Millisecond, MaxDelay: 5 * time.Millisecond}).
			Service(spread{endpoint(t, slow, protocol), endpoint(t, fast, protocol)})
		rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
		require.NoError(t, err)
		select { // before the winner's body is read
		case <-gone:
		case <-time.After(patience):
			require.Fail(t, "the loser was not canceled")
		}
		assert.Len(t, read(t, rsp), len(whole))
	})
}

// Both attempts send the whole body.
func TestE2EHedgeBody(t *testing.T) {
	body := strings.Repeat("hello", 1000)
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		bubble(t, func(t *testing.T, ctx context.Context) { // otherwise the delay may end before the body was read
			slow, fast := newHost(ctx, 0), newHost(ctx, 0)
			letGo, got := make(chan struct{}), make(chan int, 1)
			slow.srv.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				got <- len(b)
				<-letGo
			})
			fast.srv.Handler = http.HandlerFunc(echoes)
			to := func(h *host) *Endpoint {
				return NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(h.network.DialContext), protocol)
			}
			svc := NewStack().Hedge(HedgePolicy{MinDelay: 20 * time.Millisecond, MaxDelay: 20 * time.Millisecond}).
				Service(spread{to(slow), to(fast)})
			rsp, err := svc.Call(ctx, request(t, http.MethodPut, "http://web/", body))
			require.NoError(t, err)
			assert.Equal(t, body, read(t, rsp))
			assert.Equal(t, len(body), <-got)
			close(letGo)
		})
	})
}

// A slow POST is not hedged.
func TestE2EHedgeExcludesPost(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		slow, b := newHost(ctx, 0), newHost(ctx, 0)
		slow.srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pipe(io.Discard, r.Body) // net/http detects a closed connection only after the body was read
			select {
			case <-time.After(20 * time.Millisecond):
				say(w, "slow")
			case <-r.Context().Done():
			}
		})
		to := func(h *host) *Endpoint {
			return NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(h.network.DialContext))
		}
		svc := NewStack().Hedge(HedgePolicy{MinDelay: time.Millisecond, MaxDelay: time.Millisecond}).Service(spread{to(slow), to(b)})
		rsp, err := svc.Call(ctx, request(t, http.MethodPost, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "slow", read(t, rsp))
		assert.Zero(t, b.served.Load())
		rsp, err = svc.Call(ctx, request(t, http.MethodPut, "http://web/", "hello"))
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp), "a PUT would be")
		assert.EqualValues(t, 1, b.served.Load())
	})
}
