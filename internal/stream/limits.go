package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// minLife is the smallest limit for Idle and Lifetime, because a shorter stream does not
// reset the backoff of [Reconnect].
const minLife = settled

// Limits are a stream's time limits. A field of 0 or less means no limit. The Idle limit does not
// include the time between [Watchdog.Pause] and [Watchdog.Wait].
type Limits struct {
	Initial  time.Duration // to the first message of the server
	Idle     time.Duration // between two messages
	Lifetime time.Duration // for the whole stream
}

// OrDefault returns a copy of l. Fields that are 0 get the limits in linkerd's chart: 3 s for
// Initial, 5 min for Idle and 1 h for Lifetime. A positive Idle or Lifetime is raised to at least
// 10 s. A negative field becomes 0, which means no limit.
func (l Limits) OrDefault() Limits {
	return Limits{
		Initial:  limitOrDefault(l.Initial, 3*time.Second, 0),
		Idle:     limitOrDefault(l.Idle, 5*time.Minute, minLife),
		Lifetime: limitOrDefault(l.Lifetime, time.Hour, minLife),
	}
}

// limitOrDefault returns the limit for the field d: standard if d is 0, no limit if it is negative, and
// otherwise d, but at least minimum.
func limitOrDefault(d, standard, minimum time.Duration) time.Duration {
	switch {
	case d < 0:
		return 0
	case d == 0:
		return standard
	}
	return max(d, minimum)
}

// Watchdog cancels the context of one stream at a time limit. Only the goroutine that
// reads the stream may use it.
type Watchdog struct {
	ctx    context.Context //nolint:containedctx // the context of the stream
	cancel context.CancelCauseFunc
	timer  *time.Timer // cancels ctx; nil until it is needed

	idle      time.Duration // 0 means no limit
	silentErr error         // the error at the Initial limit; nil after the first message
	initialAt time.Time     // the Initial limit; zero means none
	lifeEnd   time.Time     // the Lifetime limit; zero means none
	next      error         // the error at the limit for which the timer is set
}

// ErrLimit reports that the client ended a stream at its idle limit or at the end of its
// lifetime. It matches [ErrEnded]. It does not mean that the server failed.
var ErrLimit = fmt.Errorf("%w at a time limit", ErrEnded)

// errLimit is the cause with which the Watchdog cancels a context at any limit. errIdle and
// errOld are the errors of a stream at the Idle limit and at the Lifetime limit.
var (
	errLimit = errors.New("time limit of the stream")
	errIdle  = fmt.Errorf("%w: no message within the idle limit", ErrLimit)
	errOld   = fmt.Errorf("%w: the stream reached its lifetime", ErrLimit)
)

// Begin starts the time limits for a stream. silent is the error at the Initial limit; errors at
// the Idle and Lifetime limits match [ErrLimit]. Idle and Lifetime are extended by up to a tenth
// at random, so that many clients' streams do not end together. Call Stop when the stream has
// ended.
func (l Limits) Begin(ctx context.Context, silent error) *Watchdog {
	w := &Watchdog{silentErr: silent}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	now := time.Now()
	if l.Initial > 0 {
		w.initialAt = now.Add(l.Initial)
	}
	if l.Idle > 0 {
		w.idle = addJitter(l.Idle)
	}
	if l.Lifetime > 0 {
		w.lifeEnd = now.Add(addJitter(l.Lifetime))
	}
	return w
}

// addJitter adds up to a tenth to d at random, so that many streams do not end at the same time.
func addJitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // avoids an overflow
	return d + rand.N(d/10+1)
}

// Context returns the stream context. It is canceled at a limit.
func (w *Watchdog) Context() context.Context { return w.ctx }

// Wait starts the next limit's timer. Call it before waiting for a message. If the limit has
// already passed, Wait returns its error, so that even a stream with a constant flow of messages
// ends.
func (w *Watchdog) Wait() error {
	deadline := w.lifeEnd
	w.next = errOld
	// sooner makes t the deadline if it comes before the present one. end is then the error of the stream's end.
	sooner := func(t time.Time, end error) {
		if deadline.IsZero() || t.Before(deadline) {
			deadline = t
			w.next = end
		}
	}
	switch {
	case w.silentErr != nil && !w.initialAt.IsZero():
		sooner(w.initialAt, w.silentErr)
	case w.silentErr == nil && w.idle > 0:
		sooner(time.Now().Add(w.idle), errIdle)
	}
	remaining := time.Until(deadline)
	switch {
	case deadline.IsZero():
	// The flow of messages can be so dense that the timer is always stopped in time.
	case remaining <= 0:
		return w.next
	case w.timer == nil:
		w.timer = time.AfterFunc(remaining, func() { w.cancel(errLimit) })
	default:
		w.timer.Reset(remaining)
	}
	return nil
}

// Pause stops the timer. Call it when a message has arrived. The time until the next Wait does
// not count for the Idle limit.
func (w *Watchdog) Pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Heard records that a message has arrived. The Idle limit then replaces the Initial limit.
func (w *Watchdog) Heard() { w.silentErr = nil }

// Stop stops the timer and cancels the stream's context. Call it when the stream is no longer used.
func (w *Watchdog) Stop() {
	w.Pause()
	w.cancel(nil)
}

// Cause returns the error of the limit that ended the stream, or err if no limit did.
func (w *Watchdog) Cause(err error) error {
	if errors.Is(context.Cause(w.ctx), errLimit) {
		return w.next
	}
	return err
}
