package discover_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

func TestOneUpdateIsOneChange(t *testing.T) {
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

// A Make that does not return must not keep in use what is gone.
func TestMakingDoesNotBlockRemovals(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		hung := make(chan struct{})
		made.block = func(tg discover.Target) <-chan struct{} {
			if tg.Endpoint.Addr == addr(2) {
				return hung
			}
			return nil
		}
		c := start(ctx, src, made)
		src.update(replace(at(1)))
		synctest.Wait()
		begun := time.Now()
		src.update(replace(at(2)))
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, []string{"+1 exists", "-1 exists"}, c.take(), "by the same update")
		require.Error(t, made.of(1)[0].ctx.Err())

		src.update(add(at(3), at(4)))
		synctest.Wait()
		require.Equal(t, []string{"+3 +4 exists"}, c.take(), "others are made meanwhile")
		src.update(add(labelled(2, "a"))) // changes what is not made yet
		src.update(remove(3))
		src.fail(io.ErrUnexpectedEOF)
		synctest.Wait()
		require.Equal(t, []string{"-3 exists", "exists: unexpected EOF"}, c.take(), "by a later one, and not even late")

		close(hung)
		synctest.Wait()
		require.Equal(t, []string{"+2 exists: unexpected EOF"}, c.take())
		require.Equal(t, "a", c.endpoint(2).Labels["zone"], "as it is known now")
		require.Less(t, time.Since(begun), time.Second)
	})
}

// No service was made: the endpoint is there, and is never ready.
func TestMakeReturnsNil(t *testing.T) {
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
		require.Equal(t, []string{"+1 -1 exists"}, c.take(), "nothing better will come of an heir")
		requireClosed()
	})
}

func TestRemovedBeforeItWasMade(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		hung := make(chan struct{})
		made.block = func(discover.Target) <-chan struct{} { return hung }
		c := start(ctx, src, made)
		src.update(add(at(1)))
		synctest.Wait()
		src.update(remove(1))
		synctest.Wait()
		require.Equal(t, []string{"exists", "empty"}, c.take())
		src.update(add(at(1)))
		synctest.Wait()
		require.Empty(t, c.take())
		close(hung)
		synctest.Wait()
		require.Equal(t, []string{"+1 exists"}, c.take(), "only the one that is wanted")
		fs := made.of(1)
		require.Len(t, fs, 2)
		var ended int
		for _, f := range fs {
			if f.ctx.Err() != nil {
				ended++
			}
		}
		require.Equal(t, 1, ended)
		require.NoError(t, layer.Poll(c.endpoint(1).Service))
	})
}

func TestContextEndsWhileMaking(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		ctx, cancel := context.WithCancel(ctx)
		hung := make(chan struct{})
		made.block = func(discover.Target) <-chan struct{} { return hung }
		c := start(ctx, src, made)
		src.update(add(at(1), at(2)))
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.True(t, c.isOver(), "it does not wait for Make")
		close(hung)
		synctest.Wait() // the maker's goroutine ends: else the bubble complains
		for _, f := range made.of(1) {
			require.Error(t, f.ctx.Err())
		}
	})
}

// What was to be told with what is being made has gone all the same.
func TestContextEndsBeforeARemovalIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		ctx, cancel := context.WithCancel(ctx)
		c := start(ctx, src, made)
		src.update(replace(at(1)))
		synctest.Wait()
		hung := make(chan struct{})
		defer close(hung)
		made.block = func(discover.Target) <-chan struct{} { return hung }
		src.update(replace(at(2)))
		synctest.Wait()
		require.NoError(t, layer.Poll(c.endpoint(1).Service))
		cancel()
		synctest.Wait()
		require.ErrorIs(t, layer.Poll(c.endpoint(1).Service), layer.ErrClosed)
	})
}

// A Make that does not return does not keep others from being made, wherever
// in an update they stand.
func TestMakingDoesNotBlockAdditions(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context, src *source, made *endpoints) {
		hung := make(chan struct{})
		made.block = func(tg discover.Target) <-chan struct{} {
			if i := tg.Endpoint.Addr.Addr().As4()[3]; i%2 == 0 {
				return hung
			}
			return nil
		}
		c := start(ctx, src, made)
		src.update(add(many(10)...))
		time.Sleep(100 * time.Millisecond)
		for i := 1; i < 10; i += 2 {
			require.NotNil(t, c.endpoint(i), fmt.Sprint(i))
		}
		require.Len(t, c.now, 5)
		src.update(remove(1, 2))
		synctest.Wait()
		got := c.take()
		require.Equal(t, "-1 exists", got[len(got)-1], "and nothing keeps others from leaving")
		close(hung)
		synctest.Wait()
		require.Len(t, c.now, 8)
		require.Nil(t, c.endpoint(2))
	})
}

// Those that do return are made one after the other, in the order of their
// addresses.
func TestMakingIsInOrder(t *testing.T) {
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
