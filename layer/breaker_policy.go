package layer

import (
	"fmt"
	"time"
)

// BreakerPolicy says when a [Breaker] trips, and when it tries again. Its
// figures are those of linkerd's failure accrual. The zero policy is
// consecutive failures alone: seven of them.
type BreakerPolicy struct {
	ConsecutiveFailures int           // this many in a row trip it; 0 means 7, less than 0 turns this off
	MinSuccessRate      float64       // a lower share of successes trips it, 0 to 1; 0 turns this off (linkerd uses 0.8)
	Window              time.Duration // over which Ratio is taken, at least 10 ms; 0 means 10 s
	MinRequests         int           // Ratio says nothing of fewer than these in Window, up to 1 000 000; 0 means 5

	// Backoff is the wait before a probe. The zero value, and each of Min and
	// Max that is 0, means 1 s to 60 s; the zero value has a jitter of 0.5.
	Backoff Backoff

	// RetryAfter makes the wait no shorter than what the response that tripped
	// the breaker asks for, within Backoff.Max (see [Replayer] and
	// [RetryAfter]). By default that is ignored, as linkerd does.
	RetryAfter bool
}

// UnifiedBreaker is the policy that linkerd calls unified, with its defaults:
// seven failures in a row, or less than 0.8 of at least 5 requests in 10 s.
func UnifiedBreaker() BreakerPolicy { return BreakerPolicy{MinSuccessRate: 0.8}.orDefault() }

const (
	breakerMinWindow   = 10 * time.Millisecond
	breakerMaxRequests = 1_000_000
)

// Validate returns an error that names the field that is out of its range.
func (p BreakerPolicy) Validate() error {
	switch {
	case !(p.MinSuccessRate >= 0 && p.MinSuccessRate <= 1):
		return fmt.Errorf("breaker: ratio %v must be from 0 to 1", p.MinSuccessRate)
	case p.Window != 0 && p.Window < breakerMinWindow:
		return fmt.Errorf("breaker: window %v must be at least %v", p.Window, breakerMinWindow)
	case p.MinRequests < 0 || p.MinRequests > breakerMaxRequests:
		return fmt.Errorf("breaker: requests %d must be from 0 to %d", p.MinRequests, breakerMaxRequests)
	}
	if err := p.filled().Backoff.Validate(); err != nil {
		return fmt.Errorf("breaker: %w", err)
	}
	return nil
}

// filled puts the defaults where nothing was said.
func (p BreakerPolicy) filled() BreakerPolicy {
	if p.ConsecutiveFailures == 0 {
		p.ConsecutiveFailures = 7
	}
	if p.Window == 0 {
		p.Window = 10 * time.Second
	}
	if p.MinRequests == 0 {
		p.MinRequests = 5
	}
	if p.Backoff == (Backoff{}) {
		p.Backoff.Jitter = 0.5
	}
	if p.Backoff.Max == 0 {
		p.Backoff.Max = max(time.Minute, p.Backoff.Min)
	}
	if p.Backoff.Min == 0 {
		p.Backoff.Min = min(time.Second, p.Backoff.Max)
	}
	return p
}

// orDefault makes p valid, for a constructor that cannot fail: what is out of
// its range is moved to the nearer end of it.
func (p BreakerPolicy) orDefault() BreakerPolicy {
	p = p.filled()
	if !(p.MinSuccessRate > 0) { // not a number, too
		p.MinSuccessRate = 0
	}
	p.ConsecutiveFailures = max(p.ConsecutiveFailures, -1)
	p.MinSuccessRate = min(p.MinSuccessRate, 1)
	p.Window = max(p.Window, breakerMinWindow)
	p.MinRequests = min(max(p.MinRequests, 1), breakerMaxRequests)
	p.Backoff = p.Backoff.OrDefault()
	return p
}
