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

// queueFor sends one request that has so much time, and returns its error.
func queueFor(t *testing.T, q layer.Service[int, int], has time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), has)
	defer cancel()
	_, err := q.Call(ctx, 1)
	return err
}

// The queue gives up after maxWait, although nobody in line has so much time.
func TestQueueFailsFastWithCallersInAHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 1000, 3*time.Second)
		began := time.Now()
		var late, shed, refused int
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
				refused++
			case e.Kind == layer.ErrFailFast:
				assert.Less(t, e.Waited, 1950*time.Millisecond)
				shed++
			default:
				require.ErrorIs(t, err, context.DeadlineExceeded)
				late++
			}
		}
		assert.Equal(t, [3]int{10, 18, 22}, [3]int{late, shed, refused}, "sent in the first second, in the two after that, and later")
		assert.Equal(t, 2500*time.Millisecond, layer.Describe(q).State.Get("fail_fast_for"))

		g.allow(1)
		require.NoError(t, queueFor(t, q, 2*time.Second))
		assert.Equal(t, 5500*time.Millisecond, time.Since(began))
	})
}

// So it does where they come one after the other, and the line is empty in between.
func TestQueueFailsFastWithOneCallerAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueOver(&gate{}, 10, 3*time.Second)
		began := time.Now()
		require.ErrorIs(t, queueFor(t, q, 2*time.Second), context.DeadlineExceeded)
		time.Sleep(time.Second) // nobody waits
		require.ErrorIs(t, queueFor(t, q, 2*time.Second), layer.ErrFailFast)
		assert.Equal(t, 4*time.Second, time.Since(began))
		require.ErrorContains(t, queueFor(t, q, 2*time.Second), "in fail-fast")
		assert.Equal(t, 4*time.Second, time.Since(began))
	})
}

func TestQueueForgetsWhatWasWaitedLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueOver(&gate{}, 10, 3*time.Second)
		require.ErrorIs(t, queueFor(t, q, 2*time.Second), context.DeadlineExceeded)
		time.Sleep(3*time.Second + 1)
		began := time.Now()
		require.ErrorIs(t, queueFor(t, q, time.Minute), layer.ErrFailFast)
		assert.Equal(t, 3*time.Second, time.Since(began))
	})
}

// Once inner was ready, what was waited before counts no more.
func TestQueueAMomentOfReadinessBeginsAnew(t *testing.T) {
	inLine := func(t *testing.T, g *gate, _ layer.Service[int, int]) { // the one behind the head has two seconds, too
		g.allow(1)
		synctest.Wait()
	}
	emptyLine := func(t *testing.T, g *gate, q layer.Service[int, int]) {
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 0, layer.Describe(q).State.Get("waiting"))
		g.allow(1)
		require.NoError(t, queueFor(t, q, time.Second), "it does not wait")
	}
	for name, ready := range map[string]func(*testing.T, *gate, layer.Service[int, int]){"in line": inLine, "empty": emptyLine} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &gate{}
				q := queueOver(g, 10, 3*time.Second)
				for range 2 {
					go queueFor(t, q, 2*time.Second)
				}
				time.Sleep(time.Second)
				ready(t, g, q)
				began := time.Now()
				hurry := make(chan error, 1)
				go func() { hurry <- queueFor(t, q, 2500*time.Millisecond) }()
				time.Sleep(2400 * time.Millisecond)
				require.Equal(t, 2400*time.Millisecond, layer.Describe(q).State.Get("not_ready_for"))
				err := queueFor(t, q, time.Minute)
				require.ErrorIs(t, err, layer.ErrFailFast)
				assert.Equal(t, 3*time.Second, time.Since(began))
				require.ErrorIs(t, <-hurry, context.DeadlineExceeded)
			})
		})
	}
}

// A queue that is opened again has all of its time.
func TestQueueAfterFailFastBeginsAnew(t *testing.T) {
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

// A request that was admitted long ago says nothing of now.
func TestQueueCountsOnWhileOthersAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := queueOver(layer.Limit[int, int](1)(layer.Func[int, int](func(context.Context, int) (int, error) {
			time.Sleep(time.Minute)
			return 0, nil
		})), 10, 3*time.Second)
		go full.Call(t.Context(), 1) // holds the slot
		synctest.Wait()
		began := time.Now()
		require.ErrorIs(t, queueFor(t, full, 2*time.Second), context.DeadlineExceeded)
		require.ErrorIs(t, queueFor(t, full, 2*time.Second), layer.ErrFailFast)
		assert.Equal(t, 3*time.Second, time.Since(began))
		time.Sleep(time.Minute)
	})
}

func TestQueueSaysHowLongItWaitsInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 10, 3*time.Second)
		shown := func() any { return layer.Describe(q).State.Get("not_ready_for") }
		assert.Nil(t, shown())
		go queueFor(t, q, time.Second)
		time.Sleep(500 * time.Millisecond)
		go queueFor(t, q, time.Second)
		time.Sleep(700 * time.Millisecond)
		assert.Equal(t, 1200*time.Millisecond, shown(), "who was first has gone")
		time.Sleep(500 * time.Millisecond)
		assert.Nil(t, shown(), "nobody waits")
		go queueFor(t, q, time.Minute)
		time.Sleep(300 * time.Millisecond)
		assert.Equal(t, 1800*time.Millisecond, shown(), "without the time when nobody did")
		g.allow(1)
		synctest.Wait()
		assert.Nil(t, shown())
	})
}

// The limit of a layer above is not the caller's doing.
func TestQueueSaysWhoseTimeWasOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.NewStack[int, int]().Retry(layer.RetryPolicy[int, int]{MaxAttempts: 1, AttemptTimeout: time.Second}).
			Queue(10, time.Minute).Service(&gate{})
		_, err := svc.Call(t.Context(), 1)
		require.ErrorContains(t, err, "queue: not ready: its time was over; it waited for gate: not ready: shut")
		require.NotContains(t, err.Error(), "gone")

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err = svc.Call(ctx, 1)
		require.ErrorContains(t, err, "the caller has gone")
	})
}

// untold is never ready, and says no more than that its context is done.
type untold struct{ layer.Service[int, int] }

func (u untold) Ready(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Who is turned away is told what is wrong, not that somebody's context is done.
func TestQueueInFailFastSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueOver(untold{&gate{}}, 10, time.Second)
		require.ErrorIs(t, queueFor(t, q, time.Minute), layer.ErrFailFast)
		err := queueFor(t, q, time.Minute)
		require.EqualError(t, err, "queue web:80: not ready: in fail-fast for 0s: gate: not ready: shut")
		require.NotErrorIs(t, err, context.Canceled)
	})
}
