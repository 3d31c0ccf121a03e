package discover_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

func TestEndpointsChangePerUpdate(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := start(ctx, src, made)
		src.update(replace(at(1), at(2), at(3)))
		synctest.Wait()
		made.block = func(discover.Target) <-chan struct{} {
			soon := make(chan struct{})
			time.AfterFunc(5*time.Millisecond, func() { close(soon) })
			return soon
		}
		src.update(replace(at(4)))
		time.Sleep(time.Second)
		require.Equal(t, []string{"+1 +2 +3 exists", "+4 -1 -2 -3 exists"}, c.take())
	})
}

// The endpoint exists and is closed.
func TestMakeServiceReturnsNil(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		c := &consumer{}
		go c.run(discover.Endpoints(ctx, src, "web", func(ctx context.Context, tg discover.Target) service {
			if tg.Endpoint.Addr == addr(2) {
				return made.Make(ctx, tg)
			}
			return nil
		}))
		requireClosed := func() {
			t.Helper()
			err := layer.Poll(c.at(1).Service)
			require.ErrorIs(t, err, layer.ErrClosed)
			require.EqualError(t, err, "discover web 10.0.0.1:80: closed: no service was made for it")
			_, err = c.at(1).Service.Call(t.Context(), "")
			require.ErrorIs(t, err, layer.ErrClosed)
			require.Equal(t, "no service", layer.Describe(c.at(1).Service).Name)
		}
		src.update(replace(at(1), at(2)))
		synctest.Wait()
		require.Equal(t, []string{"+1 +2 exists"}, c.take())
		requireClosed()
		require.NoError(t, layer.Poll(c.endpoint(2).Service))

		src.update(add(named(1, "b")))
		synctest.Wait()
		require.Equal(t, []string{"+1 -1 exists"}, c.take(), "a closed successor takes over at once")
		requireClosed()
	})
}

func TestMakeServiceOrder(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		running := 0
		made.block = func(discover.Target) <-chan struct{} {
			running++
			require.Equal(t, 1, running)
			runtime.Gosched()
			running--
			return nil
		}
		c := start(ctx, src, made)
		src.update(add(many(100)...))
		synctest.Wait()
		for i, e := range c.last.Added {
			require.Equal(t, addr(i), e.Addr)
		}
		require.Len(t, c.last.Added, 100)
	})
}
