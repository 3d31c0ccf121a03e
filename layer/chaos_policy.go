package layer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// FaultPolicy says which requests meet a fault in [FaultInjection], which one, and for
// how long.
type FaultPolicy[Req any] struct {
	// Match chooses the requests. It is safe for concurrent use and does not
	// change them. Nil chooses all.
	Match func(Req) bool

	// Share of the requests that match: 0, the default, is none, 1 is all.
	Fraction float64

	// Delay comes before the request is sent, or before the error. Up to
	// Jitter more is added at random, evenly spread. Both are 0 or more.
	Delay, Jitter time.Duration

	// Err, if not nil, is returned in place of a response, after the delay.
	// Give ErrInjected for an error of no particular kind.
	Err error

	// TTL is how long requests may meet the fault. It must be more than 0: an
	// experiment that nobody ends must end by itself. Without it nothing is
	// injected.
	TTL time.Duration

	// Kill, if not nil, ends it sooner.
	Kill *KillSwitch

	// Rand returns numbers of at least 0 and less than 1 and is safe for
	// concurrent use; a test gives one that is not random. The default is
	// [rand.Float64].
	Rand func() float64
}

// Validate returns an error that names the field that is wrong.
func (p FaultPolicy[Req]) Validate() error {
	switch {
	case !(p.Fraction >= 0 && p.Fraction <= 1):
		return fmt.Errorf("chaos: share %v must be from 0 to 1", p.Fraction)
	case p.Delay < 0:
		return fmt.Errorf("chaos: delay %v must be 0 or more", p.Delay)
	case p.Jitter < 0:
		return fmt.Errorf("chaos: jitter %v must be 0 or more", p.Jitter)
	case p.TTL <= 0:
		return fmt.Errorf("chaos: ttl %v must be more than 0; without it nothing is injected", p.TTL)
	case p.Err == nil && p.Delay == 0 && p.Jitter == 0:
		return errors.New("chaos: delay, jitter or err must say what is injected")
	}
	return nil
}

// valid holds p to its ranges.
func (p FaultPolicy[Req]) valid() FaultPolicy[Req] {
	if !(p.Fraction >= 0) { // not a number, too
		p.Fraction = 0
	}
	p.Fraction = min(p.Fraction, 1)
	p.Delay, p.Jitter, p.TTL = max(p.Delay, 0), max(p.Jitter, 0), max(p.TTL, 0)
	if p.Kill == nil {
		p.Kill = new(KillSwitch)
	}
	if p.Rand == nil {
		p.Rand = rand.Float64
	}
	return p
}

// inert reports whether a valid p injects nothing.
func (p FaultPolicy[Req]) inert() bool {
	return p.Fraction == 0 || p.TTL == 0 || p.Err == nil && p.Delay == 0 && p.Jitter == 0
}

// delay is that of one request.
func (p FaultPolicy[Req]) delay() time.Duration {
	if p.Jitter == 0 {
		return p.Delay
	}
	extra := time.Duration(p.Rand() * float64(p.Jitter))
	if sum := p.Delay + extra; sum >= 0 {
		return sum
	}
	return p.Delay // the sum does not fit in a Duration
}

// cause is what an injected error says apart from being one.
func (p FaultPolicy[Req]) cause() error {
	if p.Err != nil && p.Err.Error() == ErrInjected.Error() { // it would be said twice
		return nil
	}
	return p.Err
}
