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

// Limits has the time limits of a stream. A field of 0 or less means no limit. The Idle
// limit does not include the time between [Watchdog.Pause] and [Watchdog.Wait].
type Limits struct {
	Initial  time.Duration // to the first message of the server
	Idle     time.Duration // between two messages
	Lifetime time.Duration // for the whole stream
}

// OrDefault returns a copy of l. A field of 0 gets the limit of linkerd's chart: 3 s for Initial,
// 5 min for Idle and 1 h for Lifetime. A positive Idle or Lifetime is raised to at least 10 s. A
// negative field becomes 0, which means no limit.
func (l Limits) OrDefault() Limits {
	return Limits{
		Initial:  limitOrDefault(l.Initial, 3*time.Second, 0),
		Idle:     limitOrDefault(l.Idle, 5*time.Minute, minLife),
		Lifetime: limitOrDefault(l.Lifetime, time.Hour, minLife),
	}
}

func limitOrDefault(d, standard, least time.Duration) time.Duration {
	switch {
	case d < 0:
		return 0
	case d == 0:
		return standard
	}
	return max(d, least)
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

// Begin starts the time limits of a stream. The argument silent is the error at the Initial
// limit. The errors at the Idle and Lifetime limits match [ErrLimit]. A random part of up
// to a tenth is added to Idle and Lifetime, so that the streams of many clients do not end
// together. The caller must call Stop when the stream has ended.
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

// addJitter returns d plus a random part of up to a tenth of d.
func addJitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // avoids an overflow
	return d + rand.N(d/10+1)
}

// Context returns the context of the stream. It is canceled at a limit.
func (w *Watchdog) Context() context.Context { return w.ctx }

// Wait starts the timer of the next limit. The caller calls Wait before it waits for a
// message. If the limit has already passed, Wait returns the error of the limit, so that a
// stream with a constant flow of messages also ends.
func (w *Watchdog) Wait() error {
	at := w.lifeEnd
	w.next = errOld
	sooner := func(t time.Time, end error) {
		if at.IsZero() || t.Before(at) {
			at, w.next = t, end
		}
	}
	switch {
	case w.silentErr != nil && !w.initialAt.IsZero():
		sooner(w.initialAt, w.silentErr)
	case w.silentErr == nil && w.idle > 0:
		sooner(time.Now().Add(w.idle), errIdle)
	}
	left := time.Until(at)
	switch {
	case at.IsZero():
	case left <= 0:
		return w.next
	case w.timer == nil:
		w.timer = time.AfterFunc(left, func() { w.cancel(errLimit) })
	default:
		w.timer.Reset(left)
	}
	return nil
}

// Pause stops the timer. The caller calls Pause when it has received a message. The time until the
// next Wait does not count for the Idle limit.
func (w *Watchdog) Pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Heard records that a message has arrived. The Idle limit then replaces the Initial limit.
func (w *Watchdog) Heard() { w.silentErr = nil }

// Stop stops the timer and cancels the context.
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
