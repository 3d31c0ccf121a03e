package layer

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBreakerWindowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newBreakerWindow(time.Second)
		type sample struct {
			turn uint64
			ok   bool
		}
		var all []sample
		turn := rapid.Uint64Range(0, 1<<21).Draw(t, "turn")
		for _, step := range rapid.SliceOf(rapid.IntRange(0, 40)).Draw(t, "steps") {
			turn += uint64(max(step-20, 0))
			now, ok := w.start.Add(time.Duration(turn)*w.width), step%2 == 0
			w.add(now, ok)
			all = append(all, sample{turn, ok})
			var wantGood, want uint64
			for _, s := range all {
				if turn-s.turn < 10 {
					want++
					if s.ok {
						wantGood++
					}
				}
			}
			if good, n := w.sum(now); good != wantGood || n != want {
				t.Fatalf("in turn %d: %d of %d, want %d of %d", turn, good, n, wantGood, want)
			}
		}
	})
}

func TestBreakerWindowBuckets(t *testing.T) {
	require.Equal(t, time.Second, newBreakerWindow(10*time.Second).width)
	require.Equal(t, 10*time.Millisecond, newBreakerWindow(time.Millisecond).width)
}

func TestBreakerWindowConcurrent(t *testing.T) {
	w := newBreakerWindow(time.Hour)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 1000 {
				w.add(w.start, i%4 != 0)
			}
		})
	}
	all.Wait()
	good, n := w.sum(w.start)
	require.EqualValues(t, 6000, good)
	require.EqualValues(t, 8000, n)
}

// An outcome that is a whole window late must not clear a bucket.
func TestBreakerWindowLateSample(t *testing.T) {
	w := newBreakerWindow(time.Second)
	now := w.start.Add(10 * w.width)
	w.add(now, true)
	w.add(w.start, true)
	good, n := w.sum(now)
	require.EqualValues(t, 2, good)
	require.EqualValues(t, 2, n)
}
