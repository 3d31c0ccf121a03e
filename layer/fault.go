package layer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// FaultPolicy configures [FaultInjection]: it selects requests, the fault and the duration.
type FaultPolicy[Req any] struct {
	// Match selects requests. The default selects all. It must be safe for concurrent
	// use and must not modify its argument.
	Match func(Req) bool

	// Fraction is the share of the selected requests that get the fault, 0 to 1. The
	// default is 0.
	Fraction float64

	// Delay is the wait before the request is sent or the error is returned. Up to
	// Jitter is added at random, evenly distributed. Both must be at least 0.
	Delay, Jitter time.Duration

	// Err, if not nil, is returned after the delay instead of a response. Use
	// ErrInjected for an unspecific error.
	Err error

	// TTL is the time for which faults are injected. It must be above 0, because a
	// forgotten experiment must end. To end it earlier, let Match return false.
	TTL time.Duration

	// Rand returns numbers from 0 to below 1. The default is [rand.Float64]. It must be
	// safe for concurrent use.
	Rand func() float64
}

// Validate returns an error that names the field that is wrong.
func (p FaultPolicy[Req]) Validate() error {
	switch {
	case !(p.Fraction >= 0 && p.Fraction <= 1):
		return fmt.Errorf("FaultPolicy.Fraction is %v, must be 0 to 1", p.Fraction)
	case p.Delay < 0:
		return fmt.Errorf("FaultPolicy.Delay is %v, must be at least 0", p.Delay)
	case p.Jitter < 0:
		return fmt.Errorf("FaultPolicy.Jitter is %v, must be at least 0", p.Jitter)
	case p.TTL <= 0:
		return fmt.Errorf("FaultPolicy.TTL is %v, must be above 0", p.TTL)
	case p.Err == nil && p.Delay == 0 && p.Jitter == 0:
		return errors.New("FaultPolicy: Delay, Jitter or Err must be set")
	}
	return nil
}

// delay returns the delay of one request, with its random part.
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

// cause returns Err, or nil if its text would repeat that of ErrInjected.
func (p FaultPolicy[Req]) cause() error {
	if p.Err != nil && p.Err.Error() == ErrInjected.Error() {
		return nil
	}
	return p.Err
}

// FaultInjection injects faults into a share of the requests for a limited time: a
// delay, an error, or an error after a delay. Place it where the fault would occur:
// below the retries under test and above the endpoint.
//
// Admission: every request is admitted. Ready is forwarded. An injected error that
// matches [ErrNotReady] is a rejection.
//
// Cancellation: a delay ends with the caller's context. A request whose context has
// ended gets no fault.
//
// Body: not touched. A request that gets an error is not sent.
//
// Errors: an injected error is an [Error] of kind [ErrInjected] that matches the Err of
// the policy. If the caller's context ends a delay, the error matches ErrInjected and
// the cause of the context. Both are [Ignorable].
//
// Cost: one atomic load after the TTL. Until then a clock reading for each request, and
// a random number for each matching one.
//
// The TTL starts with the call of FaultInjection. An invalid policy panics.
func FaultInjection[Req, Rsp any](p FaultPolicy[Req], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	if p.Rand == nil {
		p.Rand = rand.Float64
	}
	live := &faultLife{start: time.Now(), ttl: p.TTL}
	delays, failures := o.to.FaultsInjected.With("fault", "delay"), o.to.FaultsInjected.With("fault", "error")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if p.Fraction == 0 {
			return next
		}
		c := &chaos[Req, Rsp]{Service: next, target: o.target, policy: p, life: live}
		c.delayed.to, c.failed.to = delays, failures
		c.err = &Error{Layer: "fault", Target: o.target, Kind: ErrInjected, Err: p.cause()}
		return c
	}
}

type chaos[Req, Rsp any] struct {
	Service[Req, Rsp]
	target          string
	policy          FaultPolicy[Req]
	life            *faultLife
	requests        atomic.Int64 // that got a fault
	delayed, failed tally
	err             error // the injected error, shared by all requests; immutable
}

// faultLife is the time limit of the faults, shared by all services of a layer.
type faultLife struct {
	start time.Time
	ttl   time.Duration
	over  atomic.Bool
}

// left returns the remaining time, at least 0.
func (l *faultLife) left() time.Duration { return max(l.ttl-time.Since(l.start), 0) }

func (c *chaos[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if c.life.over.Load() || !c.hits(ctx, req) {
		return c.Service.Call(ctx, req)
	}
	c.requests.Add(1)
	if d := c.policy.delay(); d > 0 {
		c.delayed.inc()
		start := time.Now()
		// The delay is not longer than the faults.
		if err := backoff.Sleep(ctx, min(d, c.life.left())); err != nil {
			return rsp, &Error{
				Layer: "fault", Target: c.target, Kind: ErrInjected,
				Reason: "canceled by the caller during the delay", Waited: time.Since(start), Err: err,
			}
		}
	}
	if c.policy.Err == nil {
		return c.Service.Call(ctx, req)
	}
	c.failed.inc()
	return rsp, c.err
}

// hits reports whether a request gets the fault.
func (c *chaos[Req, Rsp]) hits(ctx context.Context, req Req) bool {
	if c.life.left() <= 0 {
		c.life.over.Store(true)
		return false
	}
	if ctx.Err() != nil || c.policy.Match != nil && !c.policy.Match(req) {
		return false
	}
	return c.policy.Fraction >= 1 || c.policy.Rand() < c.policy.Fraction
}

func (c *chaos[Req, Rsp]) Next() Service[Req, Rsp] { return c.Service }

func (c *chaos[Req, Rsp]) Describe() Node {
	left := c.life.left().Round(time.Millisecond)
	return Node{Name: "fault", State: State{
		{"share", c.policy.Fraction}, {"ends_in", left}, {"injected", c.requests.Load()},
		{"delayed", c.delayed.n.Load()}, {"failed", c.failed.n.Load()},
	}}
}
