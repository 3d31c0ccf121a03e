package layer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
)

// gate is a service that admits requests while it has permits, and counts its
// calls.
type gate struct {
	permits  atomic.Int64
	opened   notify.Broadcast
	closed   atomic.Bool
	readies  atomic.Int64
	calls    atomic.Int64
	rejected atomic.Int64
}

var errShut = &layer.Error{Layer: "gate", Kind: layer.ErrNotReady, Reason: "shut"}

func (g *gate) allow(n int64) { g.permits.Add(n); g.opened.Wake() }
func (g *gate) close()        { g.closed.Store(true); g.opened.Wake() }

func (g *gate) Ready(ctx context.Context) error {
	g.readies.Add(1)
	if err := g.opened.Wait(ctx, func() bool { return g.closed.Load() || g.permits.Load() > 0 }); err != nil {
		return err
	}
	if g.closed.Load() {
		return layer.ErrClosed
	}
	return nil
}

func (g *gate) Call(_ context.Context, req int) (int, error) {
	if g.closed.Load() {
		return 0, layer.ErrClosed
	}
	for {
		n := g.permits.Load()
		if n <= 0 {
			g.rejected.Add(1)
			return 0, errShut
		}
		if g.permits.CompareAndSwap(n, n-1) {
			g.calls.Add(1)
			return req, nil
		}
	}
}

func queueOver(inner layer.Service[int, int], capacity int, maxWait time.Duration) layer.Service[int, int] {
	return layer.NewStack[int, int]().WithTarget("web:80").Queue(capacity, maxWait).Service(inner)
}

func TestQueueFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 100, time.Minute)
		var order []int
		var mu sync.Mutex
		for i := range 50 {
			go func() {
				_, err := q.Call(t.Context(), i)
				assert.NoError(t, err)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		g.rejected.Store(0)
		for range 50 {
			g.allow(1)
			synctest.Wait()
		}
		require.Len(t, order, 50)
		// The next waiter becomes the head just before the Call of the old head. It may
		// take the slot, and another waiter may be the head when the old head returns.
		slips := 2 * float64(g.rejected.Load())
		for i, got := range order {
			require.InDelta(t, i, got, slips)
		}
	})
}

// After a request has waited in vain, the newest request is sent first, until the queue is empty.
func TestQueueNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 100, time.Minute)
		served := make(chan int, 100)
		send := func(ctx context.Context, req int) {
			go func() {
				if _, err := q.Call(ctx, req); err == nil {
					served <- req
				}
			}()
			synctest.Wait()
		}
		allowed := func(n int) (order []int) {
			for range n {
				g.allow(1)
				order = append(order, <-served)
				synctest.Wait()
			}
			return order
		}
		ctx, cancel := context.WithCancel(t.Context())
		send(ctx, 0)
		for i := range 4 {
			send(t.Context(), i+1)
		}
		cancel()
		synctest.Wait()
		require.Equal(t, []int{4, 3, 2, 1}, allowed(4))
		for i := range 3 {
			send(t.Context(), i)
		}
		require.Equal(t, 0, allowed(1)[0], "the queue was empty")
		allowed(2)
	})
}

// overtaken delays the Calls of the first requests until others took the
// permits.
type overtaken struct {
	*gate
	slow atomic.Int64
	late chan struct{}
}

func (o *overtaken) Call(ctx context.Context, req int) (int, error) {
	if int64(req) < o.slow.Load() {
		<-o.late
	}
	return o.gate.Call(ctx, req)
}

func TestQueueMaxWaitOfOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxWait, callers = 10 * time.Second, 7
		o := &overtaken{gate: &gate{}, late: make(chan struct{})}
		q := queueOver(o, callers, maxWait)
		start := time.Now()
		answers := make(chan error, callers)
		for i := range callers {
			go func() { _, err := q.Call(t.Context(), i); answers <- err }()
			time.Sleep(time.Second)
		}
		o.slow.Store(3)
		o.allow(1)
		require.NoError(t, <-answers, "one behind the first three")
		close(o.late)
		synctest.Wait() // the three have rejoined
		require.Equal(t, int64(callers-1), layer.Describe(q).State.Get("waiting"))
		for range callers - 1 {
			require.ErrorIs(t, <-answers, layer.ErrFailFast)
		}
		assert.Equal(t, (callers-1)*time.Second+maxWait, time.Since(start), "each waits for maxWait")
	})
}

func TestQueueWakesOneWaiterPerSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 10_000
		g := &gate{}
		q := queueOver(g, waiters, time.Minute)
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				_, err := q.Call(t.Context(), 1)
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		before := g.readies.Load()
		for range waiters {
			g.allow(1)
			synctest.Wait()
		}
		wg.Wait()
		assert.LessOrEqual(t, g.readies.Load()-before, int64(2*waiters))
	})
}

func TestQueueFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 100, 3*time.Second)
		errs := make(chan error, 10)
		for i := range 10 {
			if i == 5 {
				time.Sleep(time.Second)
			}
			go func() { _, err := q.Call(t.Context(), i); errs <- err }()
		}
		start := time.Now()
		for i := range 10 {
			err := <-errs
			require.ErrorIs(t, err, layer.ErrFailFast)
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.ErrorIs(t, err, errShut, "the cause is what it waited for")
			var e *layer.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, "web:80", e.Target)
			assert.Contains(t, []time.Duration{3 * time.Second, 2 * time.Second}, e.Waited, i)
		}
		assert.Equal(t, 2*time.Second, time.Since(start), "the late ones fail with the head")

		_, err := q.Call(t.Context(), 1)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrFailFast, "a new request did not wait")
		require.ErrorIs(t, err, errShut)
		assert.Equal(t, 2*time.Second, time.Since(start), "and is rejected at once")

		g.allow(1)
		_, err = q.Call(t.Context(), 1)
		require.NoError(t, err, "open again as soon as inner is ready")
	})
}

// changingReason is a service that rejects with changing reasons.
type changingReason struct{ now atomic.Pointer[layer.Error] }

func (m *changingReason) Ready(ctx context.Context) error {
	<-ctx.Done()
	return &layer.Error{Layer: "moody", Reason: m.now.Load().Reason, Err: context.Cause(ctx)}
}

func (m *changingReason) Call(context.Context, int) (int, error) { return 0, m.now.Load() }

// A new request in fail-fast gets the current reason.
func TestQueueFailFastCurrentReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &changingReason{}
		say := func(reason string) {
			inner.now.Store(&layer.Error{Layer: "moody", Kind: layer.ErrNotReady, Reason: reason})
		}
		say("asleep")
		q := queueOver(inner, 10, time.Second)
		_, err := q.Call(t.Context(), 1)
		require.ErrorIs(t, err, layer.ErrFailFast)
		require.ErrorContains(t, err, "asleep")
		say("angry")
		_, err = q.Call(t.Context(), 2)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.EqualError(t, err, "queue web:80: not ready: in fail-fast for 0s: moody: not ready: angry")
		require.Contains(t, fmt.Sprint(layer.Describe(q)), "angry")
	})
}

func TestQueueHeadLeaves(t *testing.T) { // golang/go#37852
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 10, time.Minute)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("caller gone")
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := q.Call(ctx, 1); first <- err }()
		synctest.Wait()
		go func() { _, err := q.Call(t.Context(), 2); second <- err }()
		synctest.Wait()
		cancel(gone)
		err := <-first
		require.ErrorIs(t, err, gone)
		require.ErrorIs(t, err, layer.ErrNotReady, "it was never sent")
		require.ErrorContains(t, err, "shut", "the cause of the wait")
		g.allow(1)
		require.NoError(t, <-second)
	})
}

func TestQueueGrantAndCancelRace(t *testing.T) {
	for range 200 {
		g := &gate{}
		q := queueOver(g, 10, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := q.Call(ctx, 1); first <- err }()
		go func() { _, err := q.Call(t.Context(), 2); second <- err }()
		go cancel()
		g.allow(1)
		if err := <-first; err == nil {
			g.allow(1)
		}
		require.NoError(t, <-second, "a slot that the first did not take is the second's")
	}
}

func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 2, time.Minute)
		for i := range 2 {
			go func() { _, err := q.Call(t.Context(), i); assert.NoError(t, err) }()
		}
		synctest.Wait()
		_, err := q.Call(t.Context(), 3)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorContains(t, err, "full, 2 are waiting")
		require.ErrorIs(t, layer.Poll(q), layer.ErrNotReady)

		ready := make(chan error, 1)
		go func() { ready <- q.Ready(t.Context()) }()
		synctest.Wait()
		require.Empty(t, ready)
		g.allow(1)
		require.NoError(t, <-ready, "the queue has room")
		g.allow(1)
		synctest.Wait()
	})
}

func TestQueueClosedInner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 10, time.Minute)
		waiting := make(chan error, 3)
		for i := range 3 {
			go func() { _, err := q.Call(t.Context(), i); waiting <- err }()
		}
		synctest.Wait()
		start := time.Now()
		g.close()
		for range 3 {
			require.ErrorIs(t, <-waiting, layer.ErrClosed)
		}
		_, err := q.Call(t.Context(), 4)
		require.ErrorIs(t, err, layer.ErrClosed)
		require.ErrorIs(t, q.Ready(t.Context()), layer.ErrClosed)
		require.Zero(t, time.Since(start))
	})
}

// readyRejecter is a service that is ready but rejects every request.
type readyRejecter struct{ calls atomic.Int64 }

func (*readyRejecter) Ready(context.Context) error { return nil }
func (c *readyRejecter) Call(context.Context, int) (int, error) {
	c.calls.Add(1)
	return 0, errShut
}

func TestQueueRejectionsOfAReadyService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &readyRejecter{}
		_, err := queueOver(c, 10, 3*time.Second).Call(t.Context(), 1)
		require.Equal(t, error(errShut), err)
		assert.Equal(t, int64(12), c.calls.Load(), "one without the queue, eleven turns")
	})
}

func TestQueuePassesErrorsOfInner(t *testing.T) { // tower-rs/tower#244: one error poisons the buffer
	boom := errors.New("boom")
	fail := true
	q := queueOver(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
		if fail {
			return 0, boom
		}
		return req, nil
	}), 10, time.Second)
	_, err := q.Call(t.Context(), 1)
	require.ErrorIs(t, err, boom)
	fail = false
	_, err = q.Call(t.Context(), 1)
	require.NoError(t, err)
}

func TestQueuePanicInReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &panicsInReady{}
		q := queueOver(p, 10, time.Minute)
		first := make(chan any, 1)
		go func() {
			defer func() { first <- recover() }()
			_, _ = q.Call(t.Context(), 1)
		}()
		require.Equal(t, "ready", <-first)
		_, err := q.Call(t.Context(), 2)
		require.NoError(t, err)
	})
}

// panicsInReady is a service that rejects its first Call and panics in its first Ready.
type panicsInReady struct{ readies, calls int }

func (p *panicsInReady) Ready(context.Context) error {
	p.readies++
	if p.readies == 1 {
		panic("ready")
	}
	return nil
}

func (p *panicsInReady) Call(context.Context, int) (int, error) {
	p.calls++
	if p.calls == 1 {
		return 0, errShut
	}
	return 1, nil
}

func TestQueueDescribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := queueOver(g, 10, time.Second)
		go func() { _, _ = q.Call(t.Context(), 1) }()
		synctest.Wait()
		assert.Contains(t, fmt.Sprint(layer.Describe(q)), "waiting=1 capacity=10 max_wait=1s")
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		n := layer.Describe(q)
		assert.Equal(t, 500*time.Millisecond, n.State.Get("fail_fast_for"))
		assert.Contains(t, n.State.Get("waits_for"), "shut")
	})
}

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

// shared is an instrument for concurrent callers.
type shared struct {
	mu   sync.Mutex
	seen []float64
	last float64
}

func (s *shared) With(...string) metrics.Histogram { return s }

func (s *shared) Observe(value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.last = append(s.seen, value), value
}

func (s *shared) all() []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// level is a gauge that can be set and added to.
type level struct{ *shared }

func (l level) With(...string) metrics.Gauge { return l }
func (l level) Set(value float64)            { l.Observe(value) }
func (l level) Add(delta float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last += delta
	l.seen = append(l.seen, l.last)
}

func (l level) now() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func TestQueueMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting, waits := level{new(shared)}, new(shared)
		rejected := byLabel{}
		measured := layer.WithMetrics[int](layer.Instruments{QueueLength: waiting, QueueWait: waits, LayerRejections: rejected})
		svc := layer.NewStack[time.Duration](measured).Queue(2, 5*time.Second).Limit(1).Service(
			layer.Func[time.Duration, int](func(_ context.Context, takes time.Duration) (int, error) {
				time.Sleep(takes)
				return 0, nil
			}))
		results := make(chan error, 4)
		send := func(takes time.Duration) {
			go func() {
				_, err := svc.Call(t.Context(), takes)
				results <- err
			}()
			synctest.Wait()
		}
		send(3 * time.Second)
		require.Zero(t, waiting.now())
		send(10 * time.Second)
		send(10 * time.Second) // of these, either may get the slot
		require.EqualValues(t, 2, waiting.now())
		send(0)
		require.ErrorIs(t, <-results, layer.ErrNotReady, "the queue is full")

		require.NoError(t, <-results)
		synctest.Wait()
		require.EqualValues(t, 1, waiting.now())
		require.ErrorIs(t, <-results, layer.ErrFailFast)
		assert.Zero(t, waiting.now())
		assert.EqualValues(t, 2, *rejected["queue"], "one found it full, one timed out")
		assert.EqualValues(t, 2, layer.Describe(svc).State.Get("rejected"))
		require.NoError(t, <-results)
		synctest.Wait()
		assert.Equal(t, []float64{3000, 5000}, waits.all())
	})
}
