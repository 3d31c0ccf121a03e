package layer

import (
	"fmt"
	"math"
	"time"
)

// HedgePolicy says which requests a [Hedge] sends a second time, and when. The
// zero HedgePolicy is ready to use: its zero fields mean the defaults.
type HedgePolicy[Req any] struct {
	// Budget bounds the copies of all requests together. Give it the Budget of
	// the [Retry] above, so that the two do not multiply. nil:
	// NewBudget(time.Second, 0.05, 1), made with the layer. A budget that banks
	// more, as that of a Retry does, is spent at once when all endpoints become
	// slow together, and then makes them slower.
	Budget *Budget

	// Quantile of the latencies of late after which a copy is sent: above 0
	// and below 1, default 0.95. It is also the share of requests that are
	// left alone, as far as the budget allows the rest.
	Quantile float64

	// MinSamples is how many latencies of the last half a minute to a minute
	// there must be for that; before, nothing is hedged. 1 to 1 000 000,
	// default 100: with fewer, the slowest five of a hundred are chance.
	MinSamples int

	// Min and Max are the bounds of the delay. Min is 1 ms by default: below
	// that a copy saves less than it costs. Max is 0 by default, which is no
	// bound. If they are the same, that is the delay, and no latencies are
	// taken.
	MinDelay, MaxDelay time.Duration

	// Body is how many bytes of a request body are kept for the copy: default
	// 64 KiB. Requests with a larger body are not hedged. Less than 0 keeps
	// nothing.
	MaxBodyBytes int64

	// Only reports whether a request may be sent twice at a time. nil: the
	// protocol's Resend.Idempotent.
	HedgeIf func(req Req) bool
}

const (
	defaultHedgeQuantile = 0.95
	defaultHedgeSamples  = 100
	maxHedgeSamples      = 1_000_000
	leastHedgeDelay      = time.Millisecond
	defaultHedgeBody     = 64 << 10
)

// Validate returns an error that names the field that is out of range.
func (p HedgePolicy[Req]) Validate() error {
	switch {
	case p.Quantile != 0 && !(p.Quantile > 0 && p.Quantile < 1):
		return fmt.Errorf("hedge policy: quantile %v must be above 0 and below 1, or 0 for %v", p.Quantile, defaultHedgeQuantile)
	case p.MinSamples < 0 || p.MinSamples > maxHedgeSamples:
		return fmt.Errorf("hedge policy: min samples %d must be from 1 to %d, or 0 for %d",
			p.MinSamples, maxHedgeSamples, defaultHedgeSamples)
	case p.MinDelay < 0:
		return fmt.Errorf("hedge policy: min %v must be more than 0, or 0 for %v", p.MinDelay, leastHedgeDelay)
	case p.MaxDelay < 0 || p.MaxDelay > 0 && p.MaxDelay < p.MinDelay:
		return fmt.Errorf("hedge policy: max %v must be at least min %v, or 0 for no bound", p.MaxDelay, p.MinDelay)
	}
	return nil
}

// orDefault returns p made valid. A Quantile that is out of range is the
// default, a Max below Min is Min, and the rest is held to its range.
func (p HedgePolicy[Req]) orDefault() HedgePolicy[Req] {
	if p.Budget == nil {
		p.Budget = NewBudget(time.Second, 0.05, 1)
	}
	if !(p.Quantile > 0 && p.Quantile < 1) {
		p.Quantile = defaultHedgeQuantile
	}
	if p.MinSamples == 0 {
		p.MinSamples = defaultHedgeSamples
	}
	p.MinSamples = min(max(p.MinSamples, 1), maxHedgeSamples)
	p.MaxDelay = max(p.MaxDelay, 0)
	if p.MinDelay <= 0 {
		p.MinDelay = leastHedgeDelay
		if p.MaxDelay > 0 {
			p.MinDelay = min(p.MinDelay, p.MaxDelay)
		}
	}
	if p.MaxDelay == 0 {
		p.MaxDelay = math.MaxInt64
	}
	p.MaxDelay = max(p.MaxDelay, p.MinDelay)
	if p.MaxBodyBytes == 0 {
		p.MaxBodyBytes = defaultHedgeBody
	}
	p.MaxBodyBytes = min(max(p.MaxBodyBytes, 0), math.MaxInt32)
	return p
}

// fixed reports whether the delay is always the same.
func (p HedgePolicy[Req]) fixed() bool { return p.MinDelay == p.MaxDelay }
