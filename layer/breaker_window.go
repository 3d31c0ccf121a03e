package layer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// breakerWindow counts the successes and failures of the last ten turns, which are periods of the
// length width, numbered from the window's creation. The outcomes of turn n are counted in bucket n
// modulo ten, which is emptied when its turn begins.
type breakerWindow struct {
	start time.Time
	width time.Duration
	bad   atomic.Bool // a failure was added; until then sum need not be computed

	mu      sync.Mutex
	buckets [breakerBuckets]breakerBucket
}

// breakerBucket holds the number of successes (good) and of all outcomes (total) in one turn, a tenth of
// a breakerWindow. turn is the number of that turn.
type breakerBucket struct{ turn, good, total uint64 }

// A window is divided into breakerBuckets turns of at least breakerMinBucket. A shorter window is lengthened to 100 ms.
const (
	breakerBuckets   = 10
	breakerMinBucket = 10 * time.Millisecond
)

// newBreakerWindow returns an empty window of this length.
func newBreakerWindow(window time.Duration) *breakerWindow {
	return &breakerWindow{start: time.Now(), width: max(window/breakerBuckets, breakerMinBucket)}
}

// turn returns the number of whole turns between w.start and now.
func (w *breakerWindow) turn(now time.Time) uint64 {
	return uint64(max(now.Sub(w.start), 0) / w.width)
}

// add counts an outcome at the time now.
func (w *breakerWindow) add(now time.Time, success bool) {
	turn := w.turn(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	// Turns reuse the buckets in a circle, so the bucket may still hold the counts of ten turns ago.
	b := &w.buckets[turn%breakerBuckets]
	if b.turn < turn { // a late outcome counts in the newer turn
		*b = breakerBucket{turn: turn}
	}
	b.total++
	if success {
		b.good++
	} else if !w.bad.Load() {
		w.bad.Store(true)
	}
}

// sum returns how many requests succeeded, and how many there were, in the window that ends now.
func (w *breakerWindow) sum(now time.Time) (good, total uint64) {
	turn := w.turn(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.buckets {
		if b.turn <= turn && turn-b.turn < breakerBuckets { // other buckets hold turns that are over
			good, total = good+b.good, total+b.total
		}
	}
	return good, total
}

// warnOfRate logs a warning if p has a MinSuccessRate, because that is usually a mistake in front of a
// whole service; see [UnifiedBreaker].
func (o *options[Rsp]) warnOfRate(p BreakerPolicy) {
	if p.MinSuccessRate > 0 && o.log != nil {
		o.log.Warn("a breaker with MinSuccessRate, as in UnifiedBreaker, turns partial failures into an outage in front of a "+
			"single endpoint or a whole service: use it only for each endpoint below a balancer, or else the zero BreakerPolicy",
			"target", o.target, "min_success_rate", p.MinSuccessRate)
	}
}

// breakerPeriod is a period during which a breaker is closed, open or probing. Each change of
// state starts a new period. A request counts only in the period that admitted it.
type breakerPeriod struct {
	// failures and window are used only while the breaker is closed. window is nil if the policy
	// sets no MinSuccessRate.
	failures atomic.Int64 // consecutive failures
	window   *breakerWindow

	trip    *breakerTrip // nil while closed; immutable
	probing bool         // the wait is over; one request at a time is admitted as a probe

	// probeUntil is the time when the probe in flight no longer keeps others from being sent, since
	// trip.probe. It is 0 if no probe is in flight, and used only if probing is true.
	probeUntil atomic.Int64
}

// breakerTrip holds the reason why a breaker is open and its probes' state.
type breakerTrip struct {
	reason string
	probe  time.Time // the time of the next probe
	probes int       // number of failed probes since the breaker opened
}

// nextTrip returns the trip after another failed probe.
func (t *breakerTrip) nextTrip() *breakerTrip {
	return &breakerTrip{reason: t.reason, probes: t.probes + 1}
}

// breakerProbeTime is the shortest time for which a probe keeps other requests from being probes.
const breakerProbeTime = time.Second

// closed returns a new period in which the breaker is closed.
func (b *breaker[Req, Rsp]) closed() *breakerPeriod {
	p := &breakerPeriod{}
	if b.policy.MinSuccessRate > 0 {
		p.window = newBreakerWindow(b.policy.Window)
	}
	return p
}

// clean reports whether a success would change nothing: the breaker is closed, keeps no success
// rate, and has counted no consecutive failures.
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
		// Both are durations since trip.probe. Until probeUntil, another request is the probe.
		return int64(time.Since(p.trip.probe)) >= p.probeUntil.Load()
	}
	return !time.Now().Before(p.trip.probe)
}

// untilProbe returns a context derived from ctx that also ends when the next probe may be
// sent. The caller must call the returned function.
func (p *breakerPeriod) untilProbe(ctx context.Context) (context.Context, context.CancelFunc) {
	// The next request may be a probe when the time of the current one is over.
	if p.probing {
		return context.WithDeadline(ctx, p.trip.probe.Add(time.Duration(p.probeUntil.Load())))
	}
	return context.WithDeadline(ctx, p.trip.probe)
}

// String returns the breaker's state in this period, for Describe.
func (p *breakerPeriod) String() string {
	switch {
	case p.trip == nil:
		return "closed"
	case p.probing:
		return "probing"
	}
	return "open"
}

// probe decides about a request that arrives in the period p, while the breaker is open or was closed
// meanwhile. It returns the period that admits the request: a probing period if the request is the next
// probe, or the closed period. Otherwise it returns the rejection.
func (b *breaker[Req, Rsp]) probe(p *breakerPeriod) (*breakerPeriod, error) {
	for {
		// A closed breaker admits the request, and a probing one does if the request takes the place of the probe.
		switch {
		case p.trip == nil, p.probing && p.takeProbe(max(b.policy.Backoff.Min, breakerProbeTime)):
			return p, nil
		// Another request is the probe, or the wait is not over.
		case p.probing || !p.admits():
			return nil, b.reject(p, nil)
		}
		// The wait is over. One of the requests that notice this starts the probing period; then all compete for its
		// first probe.
		b.now.CompareAndSwap(p, &breakerPeriod{trip: p.trip, probing: true})
		p = b.now.Load()
	}
}

// takeProbe reports whether the request may be a probe now, in the probing period p. If so, no other
// request is a probe until limit has passed or the probe has ended.
func (p *breakerPeriod) takeProbe(limit time.Duration) bool {
	// Like probeUntil, now is a duration since trip.probe.
	deadline := p.probeUntil.Load()
	now := time.Since(p.trip.probe)
	// Of several requests that see the same deadline, only one becomes the probe.
	return int64(now) >= deadline && p.probeUntil.CompareAndSwap(deadline, int64(now+limit))
}

// reject returns the rejection of a request in the open period p. cause is the caller's, or nil.
func (b *breaker[Req, Rsp]) reject(p *breakerPeriod, cause error) error {
	e := &Error{Layer: "breaker", Target: b.target, Kind: errOpen, Reason: p.trip.reason, Err: cause}
	if p.trip.probes > 0 {
		e.Reason += fmt.Sprintf(", failed probes: %d", p.trip.probes)
	}
	// The earliest time of a probe is known only while none is in flight.
	if remaining := time.Until(p.trip.probe); !p.probing && remaining > 0 {
		e.RetryAfter = remaining
		e.Reason += ", next probe in " + remaining.Round(time.Millisecond).String()
	} else {
		e.Reason += ", a probe is in flight"
	}
	return e
}
