package layer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// queueFor sends one request with a timeout, and returns its error.
func queueFor(t *testing.T, q layer.Service[int, int], has time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), has)
	defer cancel()
	_, err := q.Call(ctx, 1)
	return err
}

// The queue enters fail-fast after maxWait, although every caller has less time.
func TestQueueFailFastShortDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 1000, 3*time.Second)
		began := time.Now()
		var late, shed, rejected int
		answers := make(chan error, 100)
		for range 50 {
			go func() { answers <- queueFor(t, q, 1950*time.Millisecond) }()
			time.Sleep(110 * time.Millisecond)
		}
		for range 50 {
			err := <-answers
			require.ErrorIs(t, err, layer.ErrNotReady)
			switch e := (*layer.Error)(nil); {
			case assert.ErrorAs(t, err, &e) && e.Waited == 0:
				rejected++
			case e.Kind == layer.ErrFailFast:
				assert.Less(t, e.Waited, 1950*time.Millisecond)
				shed++
			default:
				require.ErrorIs(t, err, context.DeadlineExceeded)
				late++
			}
		}
		assert.Equal(t, [3]int{10, 18, 22}, [3]int{late, shed, rejected}, "sent in the first second, in the two after that, and later")
		assert.Equal(t, 2500*time.Millisecond, layer.Describe(q).State.Get("fail_fast_for"))

		g.allow(1)
		require.NoError(t, queueFor(t, q, 2*time.Second))
		assert.Equal(t, 5500*time.Millisecond, time.Since(began))
	})
}

func TestQueueReadyResetsFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 10, 3*time.Second)
		for range 2 {
			go queueFor(t, q, 2*time.Second)
		}
		time.Sleep(time.Second)
		g.allow(1)
		synctest.Wait()
		began := time.Now()
		short := make(chan error, 1)
		go func() { short <- queueFor(t, q, 2500*time.Millisecond) }()
		time.Sleep(900 * time.Millisecond)
		go queueFor(t, q, 2500*time.Millisecond)
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, 2400*time.Millisecond, layer.Describe(q).State.Get("not_ready_for"))
		err := queueFor(t, q, time.Minute)
		require.ErrorIs(t, err, layer.ErrFailFast)
		assert.Equal(t, 3*time.Second, time.Since(began))
		require.ErrorIs(t, <-short, context.DeadlineExceeded)
	})
}

func TestQueueMaxWaitAfterFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 10, 3*time.Second)
		require.ErrorIs(t, queueFor(t, q, time.Minute), layer.ErrFailFast)
		g.allow(1)
		require.NoError(t, queueFor(t, q, time.Minute))
		began := time.Now()
		require.ErrorIs(t, queueFor(t, q, time.Minute), layer.ErrFailFast)
		assert.Equal(t, 3*time.Second, time.Since(began))
	})
}

func TestQueueDescribesUnreadyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 10, 3*time.Second)
		shown := func() any { return layer.Describe(q).State.Get("not_ready_for") }
		assert.Nil(t, shown())
		go queueFor(t, q, time.Second)
		time.Sleep(500 * time.Millisecond)
		go queueFor(t, q, time.Second)
		time.Sleep(700 * time.Millisecond)
		assert.Equal(t, 1200*time.Millisecond, shown(), "the first caller left")
		time.Sleep(500 * time.Millisecond)
		assert.Nil(t, shown(), "the queue is empty")
		go queueFor(t, q, time.Minute)
		time.Sleep(300 * time.Millisecond)
		assert.Equal(t, 300*time.Millisecond, shown())
		g.allow(1)
		synctest.Wait()
		assert.Nil(t, shown())
	})
}

func TestQueueCanceledError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.NewStack[int, int]().Retry(layer.RetryPolicy[int, int]{MaxAttempts: 1, AttemptTimeout: time.Second}).
			Queue(10, time.Minute).Service(&gate{})
		_, err := svc.Call(t.Context(), 1)
		require.ErrorContains(t, err, "queue: not ready: deadline exceeded; it waited for gate: not ready: shut")
		require.NotContains(t, err.Error(), "gone")

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err = svc.Call(ctx, 1)
		require.ErrorContains(t, err, "canceled by the caller")
	})
}

// neverReady is never ready. Its Ready returns the error of the context.
type neverReady struct{ layer.Service[int, int] }

func (u neverReady) Ready(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A rejection in fail-fast has the rejection of inner as its cause.
func TestQueueFailFastCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueOver(neverReady{&gate{}}, 10, time.Second)
		require.ErrorIs(t, queueFor(t, q, time.Minute), layer.ErrFailFast)
		err := queueFor(t, q, time.Minute)
		require.EqualError(t, err, "queue web:80: not ready: in fail-fast for 0s: gate: not ready: shut")
		require.NotErrorIs(t, err, context.Canceled)
	})
}

// A rejection by which a request must not wait does not end fail-fast, because it does not show that
// inner is ready.
func TestQueueFailFastContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		write := func(req int, _ time.Duration) int { return req }
		q := layer.NewStack[int, int]().Queue(10, 3*time.Second).DeadlineToRequest(write, time.Second).Service(g)
		require.ErrorIs(t, queueFor(t, q, time.Minute), layer.ErrFailFast)

		require.ErrorIs(t, queueFor(t, q, time.Second), layer.ErrFailFast, "no time is left after the margin")
		began := time.Now()
		require.ErrorContains(t, queueFor(t, q, time.Minute), "in fail-fast")
		assert.Zero(t, time.Since(began))

		g.allow(1)
		require.NoError(t, queueFor(t, q, time.Minute))
		assert.Nil(t, layer.Describe(q).State.Get("fail_fast_for"))
	})
}
