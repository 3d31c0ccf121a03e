package layer

import (
	"context"
	"fmt"
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
		// An outcome that is one window late counts in the newer turn. A larger
		// difference is an outcome from before an overflow of the turns.
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

// breakerPeriod is the time between two changes of a breaker. Requests keep
// the period that they were let in by: what they count in one that is over is
// never read.
type breakerPeriod struct {
	gatePeriod

	// While closed.
	failures atomic.Int64 // in a row
	window   *breakerWindow

	trip *breakerTrip // nil while closed; never changed
}

// breakerTrip is why a breaker is not closed.
type breakerTrip struct {
	reason string
	probe  time.Time // when it is tried again
	probes int       // how many failed
}

// closed begins a period with nothing counted.
func (b *breaker[Req, Rsp]) closed() *breakerPeriod {
	p := &breakerPeriod{gatePeriod: gatePeriod{mode: gateOpen}}
	if b.policy.MinSuccessRate > 0 {
		p.window = newBreakerWindow(b.policy.Window)
	}
	return p
}

// probing is the period in which one request at a time may try the service.
func (t *breakerTrip) probing() *breakerPeriod {
	p := &breakerPeriod{gatePeriod: gatePeriod{mode: gateLimited, places: 1}, trip: t}
	p.left.Store(1)
	return p
}

// clean reports whether a success would change nothing.
func (p *breakerPeriod) clean() bool {
	return p.trip == nil && p.window == nil && p.failures.Load() == 0
}

// admits reports whether a request that came now would be let in.
func (p *breakerPeriod) admits() bool {
	return p.hasRoom() || p.mode == gateShut && !time.Now().Before(p.trip.probe)
}

// untilProbe returns a context that ends when p may pass.
func (p *breakerPeriod) untilProbe(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.mode == gateShut {
		return context.WithDeadline(ctx, p.trip.probe)
	}
	return ctx, func() {}
}

func (p *breakerPeriod) String() string {
	switch p.mode {
	case gateOpen:
		return "closed"
	case gateLimited:
		return "probing"
	default:
		return "tripped"
	}
}

// probe lets one request through a breaker that is not closed. It returns the
// period that let it in.
func (b *breaker[Req, Rsp]) probe(p *breakerPeriod) (*breakerPeriod, error) {
	for {
		switch {
		case p.enter():
			return p, nil
		case p.mode != gateShut || !p.admits():
			return nil, b.reject(p, nil)
		}
		// One of the requests that see the end of the wait begins the period of
		// the probe.
		b.now.CompareAndSwap(p, p.trip.probing())
		p = b.now.Load()
	}
}

func (b *breaker[Req, Rsp]) reject(p *breakerPeriod, cause error) error {
	e := &Error{Layer: "breaker", Target: b.target, Kind: ErrNotReady, Reason: p.trip.reason, Err: cause}
	if p.trip.probes > 0 {
		e.Reason += fmt.Sprintf(", failed probes: %d", p.trip.probes)
	}
	if left := time.Until(p.trip.probe); p.mode == gateShut && left > 0 {
		e.RetryAfter = left
		e.Reason += ", next probe in " + left.Round(time.Millisecond).String()
	} else {
		e.Reason += ", a probe is out"
	}
	return e
}
