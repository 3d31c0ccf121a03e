package tap

import (
	"context"
	"errors"
	"iter"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// proxy plays linkerd's tap: requests begin at a rate, and each takes so long.
// A window ends when its last request has.
type proxy struct {
	every, takes time.Duration
	begun        []time.Duration // when windows began
	start        time.Time
	ended        atomic.Int64
}

func newProxy(every, takes time.Duration) *proxy {
	return &proxy{every: every, takes: takes, start: time.Now()}
}

func (p *proxy) observe(ctx context.Context, limit uint32) iter.Seq2[Event, error] {
	// The next window is opened after this one has said something.
	base := uint32(len(p.begun))
	p.begun = append(p.begun, time.Since(p.start))
	return func(yield func(Event, error) bool) {
		defer p.ended.Add(1)
		ends := make(chan StreamID, limit)
		sleep := func(d time.Duration) bool {
			select {
			case <-time.After(d):
				return true
			case <-ctx.Done():
				return false
			}
		}
		for n := range limit {
			// The next whole multiple of every.
			if !sleep(p.every - time.Since(p.start)%p.every) {
				yield(Event{}, ctx.Err())
				return
			}
			id := StreamID{Base: base, Stream: uint64(n)}
			if !yield(Event{ID: id, RequestInit: &RequestInit{}}, nil) {
				return
			}
			time.AfterFunc(p.takes, func() { ends <- id })
		}
		for range limit {
			select {
			case id := <-ends:
				if !yield(Event{ID: id, ResponseEnd: &ResponseEnd{}}, nil) {
					return
				}
			case <-ctx.Done():
				yield(Event{}, ctx.Err())
				return
			}
		}
	}
}

// Spec §7: a limit a second. A window that is full early waits for the rest of
// its second; one that is not, for nothing.
func TestPace(t *testing.T) {
	for name, tt := range map[string]struct {
		every, takes time.Duration
		each         uint32
		seen         int // in ten seconds
	}{
		"below the limit":     {100 * time.Millisecond, time.Millisecond, 20, 99},
		"above the limit":     {10 * time.Millisecond, time.Millisecond, 20, 200},
		"requests that last":  {10 * time.Millisecond, 3 * time.Second, 20, 200},
		"one a second":        {time.Millisecond, time.Millisecond, 1, 10},
		"requests of an hour": {10 * time.Millisecond, time.Hour, 20, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
				defer cancel()
				p := newProxy(tt.every, tt.takes)
				var lost atomic.Int64
				w := &paced{
					observe: p.observe, each: tt.each, every: time.Second, left: math.MaxUint64,
					lost: func(StreamID) { lost.Add(1) },
				}
				inits, ends := 0, 0
				for e, err := range w.all(ctx) {
					require.NoError(t, err)
					if e.RequestInit != nil {
						inits++
					}
					if e.ResponseEnd != nil {
						ends++
					}
				}
				require.Equal(t, tt.seen, inits)
				require.Equal(t, inits, ends+int(lost.Load()), "each of them ends or is given up")
				require.EqualValues(t, len(p.begun), p.ended.Load())
				for i := 1; i < len(p.begun); i++ {
					require.GreaterOrEqual(t, p.begun[i]-p.begun[i-1], time.Second)
				}
				synctest.Wait()
			})
		})
	}
}

// Requests that do not end do not pile up.
func TestPaceGivesUpTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p := newProxy(10*time.Millisecond, 20*time.Second)
		type loss struct {
			window uint32
			at     time.Duration
		}
		givenUp := make(chan loss, 100)
		w := &paced{observe: p.observe, each: 1, every: time.Second, left: math.MaxUint64, lost: func(id StreamID) {
			givenUp <- loss{id.Base, time.Since(p.start)}
		}}
		for _, err := range w.all(ctx) {
			require.NoError(t, err)
		}
		close(givenUp)
		n := 0
		for l := range givenUp {
			if n++; n <= 60-maxTails {
				require.Equal(t, maxTails*time.Second, l.at-p.begun[l.window])
			}
		}
		require.Equal(t, 60, n, "none ended")
	})
}

func TestPaceEndsWhenNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy(10*time.Millisecond, 5*time.Second)
		w := &paced{observe: p.observe, each: 20, every: time.Second, left: 50}
		var kindsSeen []Event
		for e, err := range w.all(t.Context()) {
			require.NoError(t, err)
			kindsSeen = append(kindsSeen, e)
		}
		require.Len(t, kindsSeen, 100, "requests and their ends")
		require.Len(t, p.begun, 3)
	})
}

// A window that ends without an error and without requests, such as that of a
// process that shuts down, is not asked for at full speed.
func TestPaceOfAServerThatHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
		defer cancel()
		n := 0
		w := &paced{each: 20, every: time.Second, left: math.MaxUint64}
		w.observe = func(context.Context, uint32) iter.Seq2[Event, error] {
			n++
			return func(func(Event, error) bool) {}
		}
		for range w.all(ctx) {
			t.Fatal("there is nothing to see")
		}
		require.Equal(t, 10, n)
	})
}

func TestPaceEndsWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, down := newProxy(10*time.Millisecond, time.Hour), errors.New("down")
		var lost atomic.Int64
		w := &paced{each: 1, every: time.Second, left: math.MaxUint64, lost: func(StreamID) { lost.Add(1) }}
		w.observe = func(ctx context.Context, limit uint32) iter.Seq2[Event, error] {
			if len(p.begun) == 3 {
				return func(yield func(Event, error) bool) { yield(Event{}, down) }
			}
			return p.observe(ctx, limit)
		}
		var last error
		for _, err := range w.all(t.Context()) {
			require.NoError(t, last)
			last = err
		}
		require.Equal(t, down, last)
		require.EqualValues(t, 3, lost.Load())
		require.Equal(t, 3*time.Second, time.Since(p.start))
	})
}

func TestPaceStopsWhenItsReaderDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy(10*time.Millisecond, time.Hour)
		w := &paced{observe: p.observe, each: 1, every: time.Second, left: math.MaxUint64}
		n := 0
		for range w.all(t.Context()) {
			if n++; n == 5 {
				break
			}
		}
		require.EqualValues(t, 5, p.ended.Load())
	})
}

// An end that nobody takes any more is one that will not come.
func TestPaceOfAnEndThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy(10*time.Millisecond, time.Millisecond)
		var lost atomic.Int64
		w := &paced{observe: p.observe, each: 1, every: time.Second, left: math.MaxUint64, lost: func(StreamID) { lost.Add(1) }}
		for range w.all(t.Context()) {
			time.Sleep(100 * time.Millisecond) // the end waits to be taken
			break
		}
		require.EqualValues(t, 1, lost.Load())
	})
}
