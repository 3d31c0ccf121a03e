package layer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// breakerWindow counts the outcomes of a sliding window in ten buckets. The counts are
// exact without a lock, because a bucket is one word.
type breakerWindow struct {
	start   time.Time
	width   time.Duration
	bad     atomic.Bool // a failure was added; until then sum need not be computed
	buckets [breakerBuckets]atomic.Uint64
}

const (
	breakerBuckets   = 10
	breakerMinBucket = 10 * time.Millisecond
	breakerLate      = 10 * breakerBuckets // the largest delay of an outcome, in buckets
)

func newBreakerWindow(window time.Duration) *breakerWindow {
	return &breakerWindow{start: time.Now(), width: max(window/breakerBuckets, breakerMinBucket)}
}

// A bucket has the low bits of its turn, and the counts of successes and failures. Its
// turn is the number of the bucket since the start. When one count is at its maximum,
// both are halved, which keeps their ratio.
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

// turn returns the number of bucket widths from the start to now.
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
		// An outcome that is up to one window late counts in the newer turn. A larger
		// difference means that the low bits of the turn have overflowed.
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

// sum returns the counts of the window that ends now.
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

// breakerPeriod is the time between two state changes of a breaker. During a period the breaker
// is closed, open or probing. A request counts only in the period that admitted it.
type breakerPeriod struct {
	// These are used while the breaker is closed.
	failures atomic.Int64 // consecutive
	window   *breakerWindow

	trip    *breakerTrip // nil while closed; immutable
	probing bool
	probed  atomic.Bool // a probe is in flight
}

// breakerTrip has the reason why a breaker is open and the schedule of its probes.
type breakerTrip struct {
	reason string
	probe  time.Time // the time of the next probe
	probes int       // failed probes
}

// closed returns a new period in which the breaker is closed.
func (b *breaker[Req, Rsp]) closed() *breakerPeriod {
	p := &breakerPeriod{}
	if b.policy.MinSuccessRate > 0 {
		p.window = newBreakerWindow(b.policy.Window)
	}
	return p
}

// clean reports whether a success would not change the counts of p.
func (p *breakerPeriod) clean() bool {
	return p.trip == nil && p.window == nil && p.failures.Load() == 0
}

// admits reports whether a request would be admitted now.
func (p *breakerPeriod) admits() bool {
	switch {
	case p.trip == nil:
		return true
	case p.probing:
		return !p.probed.Load()
	}
	return !time.Now().Before(p.trip.probe)
}

// untilProbe returns a context that ends when p may admit a probe, or with ctx.
func (p *breakerPeriod) untilProbe(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.probing {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, p.trip.probe)
}

func (p *breakerPeriod) String() string {
	switch {
	case p.trip == nil:
		return "closed"
	case p.probing:
		return "probing"
	}
	return "open"
}

// probe admits one request if a probe is due or p is closed. It returns the period that
// admitted the request, or the rejection.
func (b *breaker[Req, Rsp]) probe(p *breakerPeriod) (*breakerPeriod, error) {
	for {
		switch {
		case p.trip == nil, p.probing && p.probed.CompareAndSwap(false, true):
			return p, nil
		case p.probing || !p.admits():
			return nil, b.reject(p, nil)
		}
		// One of the requests after the wait starts the probing period.
		b.now.CompareAndSwap(p, &breakerPeriod{trip: p.trip, probing: true})
		p = b.now.Load()
	}
}

func (b *breaker[Req, Rsp]) reject(p *breakerPeriod, cause error) error {
	e := &Error{Layer: "breaker", Target: b.target, Kind: ErrNotReady, Reason: p.trip.reason, Err: cause}
	if p.trip.probes > 0 {
		e.Reason += fmt.Sprintf(", failed probes: %d", p.trip.probes)
	}
	if left := time.Until(p.trip.probe); !p.probing && left > 0 {
		e.RetryAfter = left
		e.Reason += ", next probe in " + left.Round(time.Millisecond).String()
	} else {
		e.Reason += ", a probe is in flight"
	}
	return e
}
