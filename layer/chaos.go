package layer

import (
	"context"
	"sync/atomic"
	"time"
)

// FaultInjection injects faults into a share of the requests, for a limited time: a
// delay, an error, or an error after a delay. Put it where the fault would
// arise: below the retries that shall meet it, above the endpoint that it
// stands for.
//
// Admission: none of its own; Ready is forwarded. An injected error that
// matches [ErrNotReady] is a refusal like any other.
//
// Cancellation: a delay ends with the caller's context. A request whose
// context is done already meets no fault.
//
// Body: not touched. A request that meets an error is not sent.
//
// Errors: an injected error is an [Error] of kind [ErrInjected] and matches
// what the policy gives. A delay that the caller's context cuts short ends in
// one too, which matches the cause of the context. Neither has a class: see
// [Ignorable]. An injected delay that a response comes after is measured like
// any other.
//
// Cost: one atomic load once it is over. Until then a clock reading for each
// request, and a random number for each that matches.
//
// The time to live counts from the call of FaultInjection, wherever the layer is
// applied after that. A policy without one injects nothing; so does one
// without a share, or with neither a delay nor an error. Other values out of
// range are held to it.
func FaultInjection[Req, Rsp any](p FaultPolicy[Req], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	p = p.valid()
	live := &chaosLife{start: time.Now(), ttl: p.TTL}
	delays, failures := o.to.FaultsInjected.With("fault", "delay"), o.to.FaultsInjected.With("fault", "error")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if p.inert() {
			return next
		}
		c := &chaos[Req, Rsp]{Service: next, target: o.target, policy: p, life: live}
		c.delayed.to, c.failed.to = delays, failures
		c.err = &Error{Layer: "chaos", Target: o.target, Kind: ErrInjected, Err: p.cause()}
		return c
	}
}

type chaos[Req, Rsp any] struct {
	Service[Req, Rsp]
	target          string
	policy          FaultPolicy[Req]
	life            *chaosLife
	requests        atomic.Int64 // that met a fault
	delayed, failed tally
	err             error // what is injected, shared by all; never changed
}

// chaosLife is how long the faults last.
type chaosLife struct {
	start time.Time
	ttl   time.Duration
	over  atomic.Bool
}

// left is how much of its time is left.
func (l *chaosLife) left() time.Duration { return max(l.ttl-time.Since(l.start), 0) }

func (c *chaos[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if c.life.over.Load() || !c.hits(ctx, req) {
		return c.Service.Call(ctx, req)
	}
	c.requests.Add(1)
	if d := c.policy.delay(); d > 0 {
		c.delayed.inc()
		start := time.Now()
		// No delay goes on for longer than the faults do.
		if err := c.policy.Kill.sleep(ctx, min(d, c.life.left())); err != nil {
			return rsp, &Error{
				Layer: "chaos", Target: c.target, Kind: ErrInjected,
				Reason: "the caller has gone during the delay", Waited: time.Since(start), Err: err,
			}
		}
	}
	if c.policy.Err == nil || c.policy.Kill.Stopped() {
		return c.Service.Call(ctx, req)
	}
	c.failed.inc()
	return rsp, c.err
}

// hits decides whether a request meets the fault.
func (c *chaos[Req, Rsp]) hits(ctx context.Context, req Req) bool {
	if c.policy.Kill.Stopped() || c.life.left() <= 0 {
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
	if c.policy.Kill.Stopped() {
		left = 0
	}
	return Node{Name: "chaos", State: State{
		{"share", c.policy.Fraction}, {"ends_in", left}, {"injected", c.requests.Load()},
		{"delayed", c.delayed.n.Load()}, {"failed", c.failed.n.Load()},
	}}
}
