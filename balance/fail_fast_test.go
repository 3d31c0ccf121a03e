package balance_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// isFinal reports whether Call and Ready of p fail at once, so that a queue does not wait.
func isFinal(t *testing.T, p *pool) bool {
	t.Helper()
	_, err := p.Call(t.Context(), "")
	require.ErrorIs(t, err, layer.ErrNotReady)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	waited := p.Ready(ctx)
	require.Error(t, waited)
	require.Equal(t, errors.Is(err, layer.ErrFailFast), errors.Is(waited, layer.ErrFailFast), "%v, %v", err, waited)
	return errors.Is(err, layer.ErrFailFast)
}

// Requests fail at once when it is certain that no endpoint can serve them.
func TestFailFast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithFailFast[*response]()), servers(2)
		require.False(t, isFinal(t, p), "not resolved yet")
		p.apply(change{State: resolve.StateEmpty})
		require.False(t, isFinal(t, p), "no endpoint yet")
		p.apply(change{State: resolve.StatePending, Err: errors.New("no DNS server")})
		require.True(t, isFinal(t, p))
		p.apply(change{State: resolve.StateDoesNotExist})
		require.True(t, isFinal(t, p))

		ss[0].fault, ss[1].fault = errRefused, errRefused
		p.add(ss...)
		ss[0].open(false)
		for range 4 { // both
			require.NoError(t, p.send(t.Context()))
		}
		ss[1].open(false)
		require.True(t, isFinal(t, p))

		ss[1].open(true)
		synctest.Wait()
		require.NoError(t, p.send(t.Context()))

		hold, waiting := make(chan struct{}), make(chan error)
		ss[1].serve = func(context.Context, string) (*response, error) {
			<-hold
			return body("x"), nil
		}
		go func() { waiting <- p.send(t.Context()) }()
		synctest.Wait()
		ss[1].fault = nil
		ss[1].open(false)
		require.False(t, isFinal(t, p), "one is busy")
		go func() { waiting <- p.Ready(t.Context()) }()
		synctest.Wait()
		p.remove(ss[1])
		require.ErrorIs(t, <-waiting, layer.ErrFailFast, "the busy one is gone")
		close(hold)
		require.NoError(t, <-waiting)
	})
}

// An endpoint that rejects requests because of a limit has not failed, even if it has none in flight, and a closed one
// has.
func TestFailFastLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithFailFast[*response]()), servers(2)
		p.add(ss[0])
		ss[0].open(false)
		require.False(t, isFinal(t, p))
		waiting := make(chan error)
		go func() { waiting <- p.WaitReady(t.Context()) }()
		synctest.Wait()
		ss[0].close()
		synctest.Wait()
		require.True(t, isFinal(t, p))
		p.add(ss[1])
		require.NoError(t, <-waiting, "WaitReady waits for endpoints that have failed")
	})
}

// By default, requests wait for failed endpoints.
func TestNoFailFast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].fault = errRefused
		p.add(ss...)
		ss[0].open(false)
		require.False(t, isFinal(t, p))
	})
}
