package tap

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap/tappb"
)

// Two watchers share the rate of their server. Reports of drops count as events.
func TestEventRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(NewRegistry(WithCapacity(0, 20)), WithAllowRemote(), WithEventRate(1000))
		svc := stand(srv.reg, respond("x"))
		ctx, cancel := context.WithCancel(t.Context())
		var sent [2]int
		ended := make(chan error)
		for i := range sent {
			go func() {
				ended <- gotowerTap{server: srv}.Watch(&tappb.WatchRequest{}, watchStream{ctx: ctx, send: func(*tappb.WatchResponse) error {
					sent[i]++
					return nil
				}})
			}()
		}
		synctest.Wait()
		for range 3000 { // in three seconds
			for range 5 {
				send(t, svc, get("/"))
			}
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.InDelta(t, 3000, sent[0]+sent[1], 50)
		require.InDelta(t, 1500, sent[0], 200)
		cancel()
		require.Error(t, <-ended)
		require.Error(t, <-ended)
	})
}

func TestEventRateUnlimited(t *testing.T) {
	for _, n := range []int{0, -1} {
		require.Nil(t, NewServer(nil, WithEventRate(5), WithEventRate(n)).rate)
	}
}

// A server that shuts down does not wait for its rate.
func TestEventRateShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(nil, WithAllowRemote(), WithEventRate(1))
		svc := stand(srv.reg, respond("x"))
		begun := time.Now()
		time.AfterFunc(time.Millisecond, func() {
			send(t, svc, get("/"))
			srv.Shutdown()
		})
		err := gotowerTap{server: srv}.Watch(&tappb.WatchRequest{}, watchStream{ctx: t.Context(), send: func(*tappb.WatchResponse) error { return nil }})
		require.Equal(t, errDown, err)
		require.Equal(t, time.Millisecond, time.Since(begun))
	})
}
