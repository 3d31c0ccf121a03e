package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// leastLife is the least Idle and Lifetime: a stream that ends sooner is taken
// as one that failed, see [Reconnect].
const leastLife = settled

// Limits are what a stream is held to. A field of 0 or less is no limit. The time
// between [Watchdog.Pause] and [Watchdog.Wait] counts for Lifetime alone.
type Limits struct {
	Initial  time.Duration // to wait for the first message that says something
	Idle     time.Duration // to wait for each message after that
	Lifetime time.Duration // of the stream in all
}

// OrDefault has what is not said be 3 s, 5 min and 1 h, as linkerd's chart gives
// its proxies, and 10 s at the least what ends a stream that is well. A field
// below 0 is no limit.
func (l Limits) OrDefault() Limits {
	return Limits{
		Initial:  limit(l.Initial, 3*time.Second, 0),
		Idle:     limit(l.Idle, 5*time.Minute, leastLife),
		Lifetime: limit(l.Lifetime, time.Hour, leastLife),
	}
}

// limit returns 0 for none.
func limit(d, standard, least time.Duration) time.Duration {
	switch {
	case d < 0:
		return 0
	case d == 0:
		return standard
	}
	return max(d, least)
}

// Watchdog ends one stream when it has reached one of its limits. It is for the
// goroutine that reads the stream.
type Watchdog struct {
	ctx   context.Context //nolint:containedctx // of the stream
	end   context.CancelCauseFunc
	timer *time.Timer // ends ctx; nil if it was never needed

	idle     time.Duration // 0 is no limit
	quiet    error         // nothing came yet, and what that means
	giveUpAt time.Time     // while it is quiet; zero is never
	oldAt    time.Time     // zero is never
	next     error         // what the limit that comes next means
}

// ErrLimit is that a stream was idle or old, and so ended by us, not by the other
// side. It is an [ErrEnded], and says nothing of how the other side is.
var ErrLimit = fmt.Errorf("%w at a limit", ErrEnded)

// What the limits mean. Their end is the cause of the stream's context.
var (
	errLimit = errors.New("limit of the stream")
	errIdle  = fmt.Errorf("%w: there was no news for long", ErrLimit)
	errOld   = fmt.Errorf("%w: it is old", ErrLimit)
)

// Begin watches a stream that begins now. Silent is what it means that nothing
// came for Initial; that a stream is idle or old is an [ErrLimit], up to a tenth
// later at random lest all streams of many clients end at once. Stop it.
func (l Limits) Begin(ctx context.Context, silent error) *Watchdog {
	w := &Watchdog{quiet: silent}
	w.ctx, w.end = context.WithCancelCause(ctx)
	now := time.Now()
	if l.Initial > 0 {
		w.giveUpAt = now.Add(l.Initial)
	}
	if l.Idle > 0 {
		w.idle = later(l.Idle)
	}
	if l.Lifetime > 0 {
		w.oldAt = now.Add(later(l.Lifetime))
	}
	return w
}

// later adds up to a tenth.
func later(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // so that there is room for it
	return d + rand.N(d/10+1)
}

// Context is the stream's: it ends at a limit.
func (w *Watchdog) Context() context.Context { return w.ctx }

// Wait has the stream end at the next limit from now on. It is an error if that is
// over: a stream that always has more to say must end as well.
func (w *Watchdog) Wait() error {
	at := w.oldAt
	w.next = errOld
	sooner := func(t time.Time, why error) {
		if at.IsZero() || t.Before(at) {
			at, w.next = t, why
		}
	}
	switch {
	case w.quiet != nil && !w.giveUpAt.IsZero():
		sooner(w.giveUpAt, w.quiet)
	case w.quiet == nil && w.idle > 0:
		sooner(time.Now().Add(w.idle), errIdle)
	}
	left := time.Until(at)
	switch {
	case at.IsZero():
	case left <= 0:
		return w.next
	case w.timer == nil:
		w.timer = time.AfterFunc(left, func() { w.end(errLimit) })
	default:
		w.timer.Reset(left)
	}
	return nil
}

// Pause ends the wait.
func (w *Watchdog) Pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Heard says that something came: from now on the limit is Idle.
func (w *Watchdog) Heard() { w.quiet = nil }

// Stop lets go of all that the stream holds.
func (w *Watchdog) Stop() {
	w.Pause()
	w.end(nil)
}

// Cause is the limit that ended the stream, or else err.
func (w *Watchdog) Cause(err error) error {
	if errors.Is(context.Cause(w.ctx), errLimit) {
		return w.next
	}
	return err
}
