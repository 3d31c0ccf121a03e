package layer

import (
	"sync/atomic"
	"time"
)

// breakerWindow counts good and bad requests over the last while, in buckets
// of a tenth of it each. It is exact and needs no lock: a bucket is one word.
type breakerWindow struct {
	start   time.Time
	width   time.Duration
	bad     atomic.Bool // there ever was one; until then there is nothing to add up
	buckets [breakerBuckets]atomic.Uint64
}

const (
	breakerBuckets   = 10
	breakerMinBucket = 10 * time.Millisecond
	breakerLate      = 10 * breakerBuckets // turns, the most that are taken for lateness
)

func newBreakerWindow(window time.Duration) *breakerWindow {
	return &breakerWindow{start: time.Now(), width: max(window/breakerBuckets, breakerMinBucket)}
}

// A bucket holds the turn in which it was last written to, shortened, and two
// counts. Both are halved when one is full, which keeps their ratio: four
// million requests in one bucket are beyond what Requests can ask for.
const (
	breakerTurnBits  = 20
	breakerCountBits = 22
	breakerTurnMask  = 1<<breakerTurnBits - 1
	breakerCountMask = 1<<breakerCountBits - 1
)

func breakerBucket(turn, good, bad uint64) uint64 {
	return turn<<(2*breakerCountBits) | good<<breakerCountBits | bad
}

func breakerUnpack(b uint64) (turn, good, bad uint64) {
	return b >> (2 * breakerCountBits), b >> breakerCountBits & breakerCountMask, b & breakerCountMask
}

// turn counts the buckets since the start.
func (w *breakerWindow) turn(now time.Time) uint64 {
	return uint64(max(now.Sub(w.start), 0) / w.width)
}

func (w *breakerWindow) add(now time.Time, success bool) {
	if !success && !w.bad.Load() {
		w.bad.Store(true)
	}
	turn := w.turn(now)
	bucket, short := &w.buckets[turn%breakerBuckets], turn&breakerTurnMask
	for {
		old := bucket.Load()
		of, good, bad := breakerUnpack(old)
		// One that comes a whole window late counts in the newer turn, rather
		// than wiping it out. What is further off is old, from before the turns
		// ran over.
		if (of-short)&breakerTurnMask > breakerLate {
			of, good, bad = short, 0, 0
		}
		if good == breakerCountMask || bad == breakerCountMask {
			good, bad = good/2, bad/2
		}
		if success {
			good++
		} else {
			bad++
		}
		if bucket.CompareAndSwap(old, breakerBucket(of, good, bad)) {
			return
		}
	}
}

// sum returns what was counted in the window that ends now.
func (w *breakerWindow) sum(now time.Time) (good, all uint64) {
	turn := w.turn(now)
	for back := range min(turn+1, breakerBuckets) {
		at := turn - back
		of, g, b := breakerUnpack(w.buckets[at%breakerBuckets].Load())
		if of == at&breakerTurnMask {
			good += g
			all += g + b
		}
	}
	return good, all
}
