package httplayer

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

func TestLinkState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{backoff: layer.Backoff{Min: time.Second, Max: time.Minute}, timeout: 5 * time.Second}
		odd := errors.New("odd")
		in := func() time.Duration { return time.Until(l.next) }

		failure := func() error { _, err := l.failure(); return err }

		// Before the first attempt, connecting needs no permission.
		assert.NoError(t, failure())
		for range 2 {
			assert.False(t, admitted(t, l))
		}

		// All of these fail; that is one failure.
		for range 3 {
			l.report(false, odd)
			assert.Equal(t, time.Second, in())
		}
		assert.EqualValues(t, 3, l.changes.Load())

		// While the link is down, one attempt is allowed after the backoff.
		allowed, wait, err := l.admit()
		assert.ErrorIs(t, err, odd)
		assert.False(t, allowed)
		assert.Equal(t, time.Second, wait)
		time.Sleep(time.Second)
		allowed, wait, err = l.admit()
		assert.NoError(t, err)
		assert.True(t, allowed)
		assert.Equal(t, 5*time.Second, wait)
		allowed, wait, err = l.admit()
		assert.ErrorIs(t, err, odd)
		assert.False(t, allowed)
		assert.Equal(t, 5*time.Second, wait)
		for range 2 { // those that were begun before do not count, nor let others in
			l.report(false, odd)
			assert.Equal(t, 5*time.Second, in())
		}
		l.report(true, odd)
		for range 2 { // a straggler does not count
			l.report(false, odd)
			assert.Equal(t, 2*time.Second, in())
		}

		// An attempt without a report does not block others permanently.
		time.Sleep(2 * time.Second)
		admitted(t, l)
		time.Sleep(5 * time.Second)
		assert.True(t, admitted(t, l))

		l.report(false, nil)
		assert.NoError(t, failure())
		assert.False(t, admitted(t, l))
		l.report(false, odd)
		assert.Equal(t, time.Second, in(), "the backoff starts from its minimum")
	})
}

// Failed connections that were in progress at the same time count once. Late failures do not start a
// second attempt.
func TestEndpointOneAttemptAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stragglers = 9
		var dials atomic.Int64
		e := swallowing(t, &dials)
		var calls sync.WaitGroup
		for range stragglers {
			calls.Go(func() { assert.ErrorIs(t, get(t.Context(), e, "/"), layer.ErrNotReady) })
			time.Sleep(120 * time.Millisecond) // the last ones begin just before the first one fails
		}
		ctx, cancel := context.WithTimeout(t.Context(), 950*time.Millisecond)
		defer cancel()
		assert.Error(t, e.Ready(ctx))
		calls.Wait()
		assert.EqualValues(t, stragglers+1, dials.Load())
		assert.Equal(t, 1, e.link.failures)
	})
}

// swallowing returns an endpoint with an address that does not respond.
func swallowing(t *testing.T, dials *atomic.Int64) *Endpoint {
	t.Helper()
	return NewEndpoint(t.Context(), "10.0.0.1:80", WithHTTP1(), WithBackoff(layer.Backoff{Min: 50 * time.Millisecond, Max: time.Minute}),
		WithConnectTimeout(time.Second), WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}))
}

func admitted(t *testing.T, l *link) bool {
	t.Helper()
	allowed, _, err := l.admit()
	assert.NoError(t, err)
	return allowed
}
