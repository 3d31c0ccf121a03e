package layer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// breakerWindow counts the successes and failures of the last ten turns. A turn is a period of the
// length in the field width. The turns are numbered from the creation of the window on. The
// outcomes of turn n count in bucket n modulo ten.
type breakerWindow struct {
	start time.Time
	width time.Duration
	bad   atomic.Bool // a failure was added; until then sum need not be computed

	mu      sync.Mutex
	buckets [breakerBuckets]breakerBucket
}

type breakerBucket struct{ turn, good, all uint64 }

const (
	breakerBuckets   = 10
	breakerMinBucket = 10 * time.Millisecond
)

func newBreakerWindow(window time.Duration) *breakerWindow {
	return &breakerWindow{start: time.Now(), width: max(window/breakerBuckets, breakerMinBucket)}
}

// turn returns the number of the turn at the time now, that is, the number of whole turns since
// w.start.
func (w *breakerWindow) turn(now time.Time) uint64 {
	return uint64(max(now.Sub(w.start), 0) / w.width)
}

func (w *breakerWindow) add(now time.Time, success bool) {
	turn := w.turn(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	b := &w.buckets[turn%breakerBuckets]
	if b.turn < turn { // a late outcome counts in the newer turn
		*b = breakerBucket{turn: turn}
	}
	b.all++
	if success {
		b.good++
	} else if !w.bad.Load() {
		w.bad.Store(true)
	}
}

// sum returns the number of successes and of all requests in the window that ends now.
func (w *breakerWindow) sum(now time.Time) (good, all uint64) {
	turn := w.turn(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.buckets {
		if b.turn <= turn && turn-b.turn < breakerBuckets {
			good, all = good+b.good, all+b.all
		}
	}
	return good, all
}

// breakerPeriod is a period of time in which a breaker is closed, open or probing. Each
// change of the state starts a new period. A request counts only in the period that
// admitted it.
type breakerPeriod struct {
	// failures and window are used only while the breaker is closed. window is nil if the
	// policy has no MinSuccessRate.
	failures atomic.Int64 // consecutive failures
	window   *breakerWindow

	trip    *breakerTrip // nil while closed; immutable
	probing bool         // the wait is over; one request at a time is admitted as a probe
	probed  atomic.Bool  // a probe is in flight; used only if probing is true
}

// breakerTrip has the reason why a breaker is open and the state of its probes.
type breakerTrip struct {
	reason string
	probe  time.Time // the time of the next probe
	probes int       // number of failed probes since the breaker opened
}

func (b *breaker[Req, Rsp]) closed() *breakerPeriod {
	p := &breakerPeriod{}
	if b.policy.MinSuccessRate > 0 {
		p.window = newBreakerWindow(b.policy.Window)
	}
	return p
}

// clean reports whether a success would change nothing: the breaker is closed, has no success rate
// to update, and has counted no consecutive failures.
func (p *breakerPeriod) clean() bool {
	return p.trip == nil && p.window == nil && p.failures.Load() == 0
}

// admits reports whether the breaker would admit a request in this period now: it is
// closed, or a probe may be sent.
func (p *breakerPeriod) admits() bool {
	switch {
	case p.trip == nil:
		return true
	case p.probing:
		return !p.probed.Load()
	}
	return !time.Now().Before(p.trip.probe)
}

// untilProbe returns a context derived from ctx that also ends when the wait before the
// next probe is over. In a probing period it returns ctx itself. The caller must call the
// returned function.
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

// probe decides about a request that arrives in the period p. It returns the period that
// admits the request: p if the breaker is closed, or a probing period if the request is the
// probe. Otherwise it returns the rejection.
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
