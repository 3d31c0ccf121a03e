package layer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// keyed is a service that is always ready, and refuses those whose key, the
// tens of a request, has no permit.
type keyed struct {
	mu      sync.Mutex
	permits map[int]int
	held    map[int]chan struct{} // what a Call of the key waits for, if it waits
}

func (k *keyed) allow(key, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.permits[key] += n
}

func (*keyed) Ready(context.Context) error { return nil }

func (k *keyed) Call(_ context.Context, req int) (int, error) {
	k.mu.Lock()
	if k.permits[req/10] <= 0 {
		k.mu.Unlock()
		return 0, errShut
	}
	k.permits[req/10]--
	held := k.held[req/10]
	k.mu.Unlock()
	if held != nil {
		<-held
		k.allow(req/10, 1)
	}
	return req, nil
}

func newKeyed() *keyed { return &keyed{permits: make(map[int]int), held: make(map[int]chan struct{})} }

// restingQueue is one in which n callers, of key 0, rest since a second. It
// returns what becomes of them.
func restingQueue(
	t *testing.T, k layer.Service[int, int], capacity, n int, maxWait time.Duration, opts ...layer.Option[int],
) (layer.Service[int, int], chan error) {
	t.Helper()
	q := layer.NewStack[int](opts...).Queue(capacity, maxWait).Service(k)
	answers := make(chan error, n)
	for i := range n {
		go func() { _, err := q.Call(t.Context(), i%10); answers <- err }()
		synctest.Wait()
	}
	time.Sleep(time.Second)
	synctest.Wait()
	return q, answers
}

func TestQueueCountsThoseWhoRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := level{new(shared)}
		k := newKeyed()
		q, answers := restingQueue(t, k, 5, 5, time.Minute, layer.WithMetrics[int](layer.Instruments{QueueLength: waiting}))
		state := layer.Describe(q).State
		require.EqualValues(t, 5, state.Get("waiting"))
		require.EqualValues(t, 5, state.Get("resting"))
		require.EqualValues(t, 5, waiting.now())
		_, err := q.Call(t.Context(), 6)
		require.ErrorContains(t, err, "full, 5 are waiting: gate")

		k.allow(1, 1)
		_, err = q.Call(t.Context(), 10)
		require.NoError(t, err, "another key has room, if the line has not")
		require.Empty(t, answers)

		k.allow(0, 5)
		for range 5 {
			require.NoError(t, <-answers)
		}
		synctest.Wait()
		require.Zero(t, waiting.now())
	})
}

func TestQueueServesThoseWhoRestInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed()
		k.allow(0, 1)
		k.held[0] = make(chan struct{})
		q := queueOver(k, 100, 0)
		served := make(chan int, 50)
		for i := range 50 {
			go func() {
				_, err := q.Call(t.Context(), i%10)
				assert.NoError(t, err)
				served <- i
			}()
			synctest.Wait()
		}
		next := func() int {
			time.Sleep(time.Second)
			synctest.Wait()
			k.held[0] <- struct{}{}
			return <-served
		}
		require.Equal(t, 0, next())
		// It did not stand in line. Of those who try after it, the first may be overtaken.
		second := next()
		last := -1
		for range 48 {
			i := next()
			require.Greater(t, i, last)
			require.NotEqual(t, second, i)
			last = i
		}
	})
}

// The line is not full of one key alone: newcomers of that key have those who
// rest before them.
func TestQueueNewcomersDoNotOvertakeThoseWhoRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gap = 10 * time.Millisecond
		svc := layer.NewStack[int, int]().Queue(1000, 0).
			With("by", layer.LimitBy[int, int, int](func(int) int { return 0 }, 1)).
			Service(layer.Func[int, int](func(context.Context, int) (int, error) {
				time.Sleep(gap)
				return 0, nil
			}))
		var all sync.WaitGroup
		for range 300 {
			all.Go(func() {
				began := time.Now()
				_, err := svc.Call(t.Context(), 0)
				assert.NoError(t, err)
				assert.Less(t, time.Since(began), time.Second, "a tenth more come than are served: the last one waits for 300 ms")
			})
			time.Sleep(gap * 9 / 10)
		}
		all.Wait()
	})
}

func TestQueueTheStarvedFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed()
		q, starved := restingQueue(t, k, 5, 1, 3*time.Second)
		others := make(chan error, 2)
		for range 2 {
			go func() { _, err := q.Call(t.Context(), 10); others <- err }()
		}
		err := <-starved
		require.ErrorIs(t, err, layer.ErrFailFast)
		require.ErrorIs(t, err, errShut)
		require.ErrorContains(t, err, "refused to the end, although others may be served (waited 3s)")
		synctest.Wait()
		require.Empty(t, others)
		require.Nil(t, layer.Describe(q).State.Get("fail_fast_for"))
		k.allow(1, 2)
		for range 2 {
			require.NoError(t, <-others)
		}
	})
}

// Nor do they when inner happens to be busy at that very moment.
func TestQueueTheStarvedFailAloneBesideOthersWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed()
		busy := make(chan struct{})
		k.allow(1, 1)
		k.held[1] = busy
		q := layer.NewStack[int, int]().Queue(5, 3*time.Second).Limit(1).Service(k)
		starved, other := make(chan error, 1), make(chan error, 1)
		go func() { _, err := q.Call(t.Context(), 0); starved <- err }()
		time.Sleep(2900 * time.Millisecond)
		go q.Call(t.Context(), 10) // has the only slot from here on
		synctest.Wait()
		go func() { _, err := q.Call(t.Context(), 10); other <- err }()
		require.ErrorIs(t, <-starved, layer.ErrFailFast)
		synctest.Wait()
		require.Empty(t, other)
		close(busy)
		require.NoError(t, <-other)
	})
}

// A line that is full of those who rest holds up nobody else, however many come
// together.
func TestQueueNewcomersPassThoseWhoRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyed()
		k.allow(1, 32*100)
		q, _ := restingQueue(t, k, 5, 5, 0)
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for range 100 {
					_, err := q.Call(t.Context(), 10)
					assert.NoError(t, err)
				}
			})
		}
		callers.Wait()
	})
}

// Those who pass a full line are not in it for longer than a moment, should the
// service be busy by the time that they have their turns.
func TestQueueNewcomersWhoPassDoNotStay(t *testing.T) {
	for _, maxWait := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			const together = 50
			c := &crowd{keyed: newKeyed(), freed: make(chan struct{})}
			c.looks.Add(together)
			q, resting := restingQueue(t, c, 5, 5, maxWait)
			answers := make(chan error, together)
			for range together {
				go func() { _, err := q.Call(t.Context(), 10); answers <- err }()
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			require.EqualValues(t, 5, layer.Describe(q).State.Get("waiting"))
			require.Len(t, answers, together-1, "one is being served")
			for range together - 1 {
				require.ErrorContains(t, <-answers, "full, 5 are waiting")
			}
			require.Nil(t, layer.Describe(q).State.Get("fail_fast_for"))
			c.allow(0, 5)
			close(c.freed)
			require.NoError(t, <-answers)
			for range 5 {
				require.NoError(t, <-resting)
			}
		})
	}
}

// crowd is ready for all those who look together, and then busy with one of them.
type crowd struct {
	*keyed
	looks sync.WaitGroup
	busy  atomic.Bool
	freed chan struct{}
}

func (c *crowd) Ready(ctx context.Context) error {
	if !c.busy.Load() {
		if ctx.Err() != nil { // a newcomer's look
			c.looks.Done()
			c.looks.Wait()
		}
		return nil
	}
	select {
	case <-c.freed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *crowd) Call(ctx context.Context, req int) (int, error) {
	if req < 10 {
		return c.keyed.Call(ctx, req)
	}
	if c.busy.Swap(true) {
		return 0, errShut
	}
	<-c.freed
	return req, nil
}

// Who waits in Ready hears that the service is ready again, though the line is full
// of those it refuses.
func TestQueueReadyBesideThoseWhoRest(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			k := &busy{keyed: newKeyed()}
			q := layer.NewStack[int, int]().Queue(5, 0).Service(k)
			for i := range 5 {
				go func() { _, _ = q.Call(t.Context(), i) }()
			}
			time.Sleep(time.Second)
			free := make(chan struct{})
			k.until.Store(&free)
			time.Sleep(time.Second)
			ready, since := make(chan error, 1), time.Now()
			go func() { ready <- q.Ready(t.Context()) }()
			synctest.Wait()
			require.Empty(t, ready)
			close(free)
			require.NoError(t, <-ready)
			require.Less(t, time.Since(since), time.Second)
		})
	}
}

// busy is not ready for a while.
type busy struct {
	*keyed
	until atomic.Pointer[chan struct{}]
}

func (b *busy) Ready(ctx context.Context) error {
	until := b.until.Load()
	if until == nil {
		return nil
	}
	select {
	case <-*until:
		return nil
	case <-ctx.Done():
	}
	select { // a context that is done asks for a look
	case <-*until:
		return nil
	default:
		return context.Cause(ctx)
	}
}
