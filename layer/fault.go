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

// FaultPolicy configures [FaultInjection]: which requests get a fault, which fault, and for
// how long faults are injected.
type FaultPolicy[Req any] struct {
	// Match reports whether a request may get the fault. By default every request may. It
	// must be safe for concurrent use and must not modify its argument.
	Match func(Req) bool

	// Fraction is the share of the requests selected by Match that get the fault, 0 to 1.
	// The default is 0.
	Fraction float64

	// Delay is the time for which a request waits before it is sent, or before Err is
	// returned. A random time from 0 to Jitter is added. Delay and Jitter must be at least
	// 0.
	Delay, Jitter time.Duration

	// Err is the error that is returned after the delay, instead of sending the request. Normally
	// you need no particular error, and can use ErrInjected. If Err is nil, the request is sent.
	Err error

	// TTL is the time after which no more faults are injected. It must be above 0, so that
	// a forgotten experiment ends. To end it earlier, let Match return false.
	TTL time.Duration

	// Rand returns a random number, at least 0 and below 1. The default is [rand.Float64].
	// It must be safe for concurrent use.
	Rand func() float64
}

// Validate returns an error that names the first invalid field, or nil.
func (p FaultPolicy[Req]) Validate() error {
	switch {
	// Written so that NaN is out of range too.
	case !(p.Fraction >= 0 && p.Fraction <= 1):
		return fmt.Errorf("FaultPolicy.Fraction is %v, must be 0 to 1", p.Fraction)
	case p.Delay < 0:
		return fmt.Errorf("FaultPolicy.Delay is %v, must be at least 0", p.Delay)
	case p.Jitter < 0:
		return fmt.Errorf("FaultPolicy.Jitter is %v, must be at least 0", p.Jitter)
	case p.TTL <= 0:
		return fmt.Errorf("FaultPolicy.TTL is %v, must be above 0", p.TTL)
	// A fault that neither delays nor fails is a mistake.
	case p.Err == nil && p.Delay == 0 && p.Jitter == 0:
		return errors.New("FaultPolicy: Delay, Jitter or Err must be set")
	}
	return nil
}

// delay returns the time to wait before a request, with the random part.
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

// cause returns the Err of the [Error] for an injected fault: p.Err, or nil if its text is the same as
// that of [ErrInjected], which the Error shows anyway.
func (p FaultPolicy[Req]) cause() error {
	if p.Err != nil && p.Err.Error() == ErrInjected.Error() {
		return nil
	}
	return p.Err
}

// FaultInjection injects faults into a share of the requests, for a limited time. A fault is a
// delay, an error, or both in this order. Place the layer where the fault would occur, usually
// below the retries that you want to test and above the endpoint.
//
// Admission: every request is admitted. Ready is forwarded. An injected error that matches
// [ErrNotReady] is a rejection.
//
// Cancellation: a delay ends with the caller's context. A request gets no fault if its context
// has ended.
//
// Body: not touched. A request that gets an error is not sent.
//
// Errors: an injected error is an [Error] of kind [ErrInjected] that matches the policy's Err. If
// the caller's context ends a delay, the error matches ErrInjected and the context's cause. Both
// errors are [Ignorable].
//
// Cost: after the TTL one atomic load. Until then a clock reading per request, and a random
// number for each matching one.
//
// The TTL starts when FaultInjection is called. An invalid policy panics.
func FaultInjection[Req, Rsp any](p FaultPolicy[Req], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	if p.Rand == nil {
		p.Rand = rand.Float64
	}
	// All stacks of the layer share its lifetime, which begins now.
	live := &faultLife{start: time.Now(), ttl: p.TTL}
	delays := o.instruments.FaultsInjected.With("fault", "delay")
	failures := o.instruments.FaultsInjected.With("fault", "error")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		// Without faults the layer is left out, so that it costs nothing.
		if p.Fraction == 0 {
			return next
		}
		f := &faultInjection[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, target: o.target, policy: p, lifetime: live}
		f.delayed.counter, f.failed.counter = delays, failures
		f.err = &Error{Layer: "fault", Target: o.target, Kind: ErrInjected, Err: p.cause()}
		return f
	}
}

// FaultInjection adds a [FaultInjection] layer, which injects delays or errors into a share of the
// requests.
func (s Stack[Req, Rsp]) FaultInjection(p FaultPolicy[Req]) Stack[Req, Rsp] {
	return s.With("fault", FaultInjection(p, s.opts...))
}

// faultInjection is the service of [FaultInjection].
type faultInjection[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	target          string // names the service in errors
	policy          FaultPolicy[Req]
	lifetime        *faultLife
	requests        atomic.Int64 // the number of requests that got a fault
	delayed, failed tally        // those that were delayed, and those that got err; a request may be both
	err             error        // the injected error, shared by all requests; immutable
}

// faultLife tells when the faults end. All services that a layer wraps share one faultLife. expired is
// set after that, so that later requests need no clock reading.
type faultLife struct {
	start   time.Time
	ttl     time.Duration
	expired atomic.Bool
}

// remaining returns the time for which faults are still injected, or 0 after the TTL.
func (l *faultLife) remaining() time.Duration { return max(l.ttl-time.Since(l.start), 0) }

// Call sends req, after a delay or not at all if it is in the share of requests with a fault.
func (f *faultInjection[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if f.lifetime.expired.Load() || !f.hits(ctx, req) {
		return f.Service.Call(ctx, req)
	}
	f.requests.Add(1)
	if d := f.policy.delay(); d > 0 {
		f.delayed.inc()
		start := time.Now()
		// The delay is not longer than the faults.
		if err := backoff.Sleep(ctx, min(d, f.lifetime.remaining())); err != nil {
			return rsp, &Error{
				Layer: "fault", Target: f.target, Kind: ErrInjected,
				Reason: "canceled by the caller during the delay", Waited: time.Since(start), Err: err,
			}
		}
	}
	if f.policy.Err == nil {
		return f.Service.Call(ctx, req)
	}
	f.failed.inc()
	return rsp, f.err
}

// hits reports whether the request gets the fault: Match selects it, or is nil, and a random number is
// below Fraction. After the TTL, or once ctx has ended, no request gets one.
func (f *faultInjection[Req, Rsp]) hits(ctx context.Context, req Req) bool {
	// After TTL, a forgotten fault disables itself.
	if f.lifetime.remaining() <= 0 {
		f.lifetime.expired.Store(true)
		return false
	}
	if ctx.Err() != nil || f.policy.Match != nil && !f.policy.Match(req) {
		return false
	}
	return f.policy.Fraction >= 1 || f.policy.Rand() < f.policy.Fraction
}

// Describe returns the share of requests, the time that is left, and the numbers of faults.
func (f *faultInjection[Req, Rsp]) Describe() Node {
	remaining := f.lifetime.remaining().Round(time.Millisecond)
	return Node{Name: "fault", State: State{
		{"share", f.policy.Fraction}, {"ends_in", remaining}, {"injected", f.requests.Load()},
		{"delayed", f.delayed.n.Load()}, {"failed", f.failed.n.Load()},
	}}
}
