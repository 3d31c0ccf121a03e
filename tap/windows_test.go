package tap

import (
	"context"
	"errors"
	"iter"
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

// The limit applies to each second. A window that is full early waits for the rest of its
// second. A window waits at most windowTail for the ends of its requests.
func TestWindows(t *testing.T) {
	for name, tt := range map[string]struct {
		every, takes time.Duration
		each         uint32
		inits        int // in a little less than 30 seconds
	}{
		"below the limit":    {100 * time.Millisecond, time.Millisecond, 20, 299},
		"above the limit":    {10 * time.Millisecond, time.Millisecond, 20, 600},
		"one a second":       {time.Millisecond, time.Millisecond, 1, 30},
		"requests that last": {10 * time.Millisecond, 3 * time.Second, 20, 200},
		"an hour":            {10 * time.Millisecond, time.Hour, 20, 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second-time.Millisecond)
				defer cancel()
				p := newProxy(tt.every, tt.takes)
				inits, ends := 0, 0
				w := &windows{observe: p.observe, perWindow: tt.each, remaining: unlimited}
				for e, err := range w.all(ctx) {
					require.NoError(t, err)
					if e.RequestInit != nil {
						inits++
					}
					if e.ResponseEnd != nil {
						ends++
					}
				}
				require.Equal(t, tt.inits, inits)
				if tt.takes < time.Hour {
					require.LessOrEqual(t, inits-ends, 20, "all but those of the last window")
				}
				require.EqualValues(t, len(p.begun), p.ended.Load())
				for i := 1; i < len(p.begun); i++ {
					require.GreaterOrEqual(t, p.begun[i]-p.begun[i-1], time.Second)
				}
				synctest.Wait()
			})
		})
	}
}

func TestWindowsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy(10*time.Millisecond, 5*time.Second)
		w := &windows{observe: p.observe, perWindow: 20, remaining: 50}
		n := 0
		for _, err := range w.all(t.Context()) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 100, n, "requests and their ends")
		require.Len(t, p.begun, 3)
	})
}

// A server that shows more than the limit does not prolong the sequence.
func TestWindowsServerIgnoresLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy(10*time.Millisecond, time.Millisecond)
		w := &windows{perWindow: 2, remaining: 2}
		w.observe = func(ctx context.Context, _ uint32) iter.Seq2[Event, error] { return p.observe(ctx, 10) }
		n := 0
		for range w.all(t.Context()) {
			n++
		}
		require.Equal(t, 20, n)
	})
}

// A window that ends without an error and without requests, such as that of a
// process that shuts down, is not repeated at full speed.
func TestWindowsServerEndsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
		defer cancel()
		n := 0
		w := &windows{perWindow: 20, remaining: unlimited}
		w.observe = func(context.Context, uint32) iter.Seq2[Event, error] {
			n++
			return func(func(Event, error) bool) {}
		}
		for range w.all(ctx) {
			t.Fatal("an event")
		}
		require.Equal(t, 10, n)
	})
}

func TestWindowsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, down := newProxy(10*time.Millisecond, time.Millisecond), errors.New("down")
		w := &windows{perWindow: 1, remaining: unlimited}
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
		require.Equal(t, 3*time.Second, time.Since(p.start))
	})
}

// A break in the range ends the window.
func TestWindowsBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy(10*time.Millisecond, time.Hour)
		w := &windows{observe: p.observe, perWindow: 5, remaining: unlimited}
		n := 0
		for range w.all(t.Context()) {
			if n++; n == 3 {
				break
			}
		}
		require.EqualValues(t, 1, p.ended.Load())
	})
}
