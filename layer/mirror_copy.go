package layer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
)

// mirroring is what all services that a Mirror was put on have in common.
type mirroring[Req, Rsp any] struct {
	life   context.Context //nolint:containedctx // the constructor's: copies live as long as it does
	to     Service[Req, Rsp]
	edit   Editor[Req, Rsp]
	policy MirrorPolicy[Req]
	resend Replayer[Req, Rsp]
	target string

	inFlight                                 atomic.Int64
	answered, failed, refused, full, skipped tally
	last                                     atomic.Pointer[string] // what went wrong last
}

// wants decides whether a request is to be copied. One that comes while there
// is no room is not: its body need not be kept.
func (m *mirroring[Req, Rsp]) wants(req Req) bool {
	if m.life.Err() != nil || m.policy.Match != nil && !m.policy.Match(req) {
		return false
	}
	if m.policy.Fraction < 1 && m.policy.Rand() >= m.policy.Fraction {
		return false
	}
	if m.inFlight.Load() >= int64(m.policy.MaxInFlight) {
		m.full.inc()
		return false
	}
	return true
}

// skip counts a request of which there is no copy, and why if that was a panic.
func (m *mirroring[Req, Rsp]) skip(panicked any) {
	m.skipped.inc()
	if panicked != nil {
		m.note(fmt.Errorf("panic: %v", panicked))
	}
}

func (m *mirroring[Req, Rsp]) note(err error) { m.last.Store(new(err.Error())) }

// mirrored is one request that may be copied. Two things must happen before it
// is: inner has not refused it, and its body was read to the end.
type mirrored[Req, Rsp any] struct {
	*mirroring[Req, Rsp]
	route  *Route
	copied Req
	so     atomic.Int32 // things that have happened
}

// whole is called by edit.Fork, on the goroutine of whoever reads the body.
func (c *mirrored[Req, Rsp]) whole(copied Req, ok bool) {
	if !ok {
		c.skip(nil)
		return
	}
	c.copied = copied
	c.happened()
}

// happened sends the copy at the second call.
func (c *mirrored[Req, Rsp]) happened() {
	if c.so.Add(1) != 2 || c.life.Err() != nil {
		return
	}
	if c.inFlight.Add(1) > int64(c.policy.MaxInFlight) {
		c.inFlight.Add(-1)
		c.full.inc()
		return
	}
	go c.send()
}

// send is a copy's goroutine. What comes of it is counted, whatever it is.
func (c *mirrored[Req, Rsp]) send() {
	outcome := &c.failed
	defer func() {
		c.inFlight.Add(-1)
		_ = panics.Contain(outcome.inc)
	}()
	if err := panics.Contain(func() { outcome = c.deliver() }); err != nil {
		c.note(err)
	}
}

// deliver sends a copy, and returns what came of it.
func (c *mirrored[Req, Rsp]) deliver() (outcome *tally) {
	ctx, cancel := context.WithTimeoutCause(c.life, c.policy.Timeout, &Error{
		Layer: "mirror", Target: c.target, Reason: "a copy took too long", Waited: c.policy.Timeout, Kind: ErrTimeout,
	})
	defer cancel()
	ctx = WithPriority(ctx, PriorityBulk)
	if c.route != nil {
		ctx = WithRoute(ctx, c.route)
	}
	req := c.copied
	if c.policy.Rewrite != nil {
		req = c.policy.Rewrite(req)
	}
	rsp, err := c.to.Call(ctx, req)
	switch {
	case err == nil:
		c.resend.Drain(rsp)
		return &c.answered
	case errors.Is(err, ErrNotReady):
		c.note(err)
		return &c.refused
	default:
		c.note(err)
		return &c.failed
	}
}
