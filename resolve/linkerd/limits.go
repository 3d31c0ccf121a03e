package linkerd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/stream"
)

// leastLife is the least Idle and Lifetime: a stream that ends sooner is taken
// as one that failed, see resolve.Reconnect.
const leastLife = 10 * time.Second

// Limits are what [StreamLimits] holds each stream to. The zero value is what
// linkerd's chart gives its proxies: 3 s, 5 min, 1 h. A field below 0 is no
// limit. Waiting for the consumer counts for Lifetime alone.
type Limits struct {
	// Initial is how long to wait for the first message that says something,
	// connecting included. After that the stream has failed, with the code
	// DeadlineExceeded. 0 means 3 s.
	Initial time.Duration

	// Idle is how long to wait for each message after that, and Lifetime how
	// long a stream lasts in all. After that, and up to a tenth later at random
	// lest all streams of many clients do so at once, the stream is ended and
	// opened again, and so brings all there is. That is routine, and a line at
	// the level of debug. 0 means 5 min and 1 h, the least is 10 s.
	Idle     time.Duration
	Lifetime time.Duration
}

// StreamLimits ends streams that are silent or old, so that what was lost on
// the way is made up for after Lifetime at the latest, and a controller that
// takes streams and says nothing is found out. The default, as it is linkerd's
// proxy's own, is no limit: use it unless the controller is on this machine.
func StreamLimits(l Limits) Option {
	return option(func(o *options) {
		o.limits = Limits{
			Initial:  limit(l.Initial, 3*time.Second, 0),
			Idle:     limit(l.Idle, 5*time.Minute, leastLife),
			Lifetime: limit(l.Lifetime, time.Hour, leastLife),
		}
	})
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

// watchdog ends one stream when it has reached one of its limits.
type watchdog struct {
	ctx   context.Context //nolint:containedctx // of the stream
	end   context.CancelCauseFunc
	timer *time.Timer // ends ctx; nil if it was never needed

	idle     time.Duration // 0 is no limit
	silent   bool          // nothing came yet
	giveUpAt time.Time     // while silent; zero is never
	oldAt    time.Time     // zero is never
	next     error         // what the limit that comes next means
}

// What the limits mean. Their end is the cause of the stream's context.
var (
	errLimit  = errors.New("limit of the stream")
	errSilent = status.Error(codes.DeadlineExceeded, "the controller says nothing")
	errIdle   = fmt.Errorf("%w: there was no news for long", stream.ErrEnded)
	errOld    = fmt.Errorf("%w: it is old", stream.ErrEnded)
)

// begin watches a stream that begins now.
func (l Limits) begin(ctx context.Context) *watchdog {
	w := &watchdog{idle: later(l.Idle), silent: true}
	w.ctx, w.end = context.WithCancelCause(ctx)
	if l.Initial > 0 {
		w.giveUpAt = time.Now().Add(l.Initial)
	}
	if l.Lifetime > 0 {
		w.oldAt = time.Now().Add(later(l.Lifetime))
	}
	return w
}

// later adds up to a tenth.
func later(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // so that there is room for it
	return d + rand.N(d/10+1)
}

// wait has ctx end at the next limit from now on. It is an error if that is
// over: a stream that always has more to say must end as well.
func (w *watchdog) wait() error {
	at := w.oldAt
	w.next = errOld
	sooner := func(t time.Time, why error) {
		if at.IsZero() || t.Before(at) {
			at, w.next = t, why
		}
	}
	switch {
	case w.silent && !w.giveUpAt.IsZero():
		sooner(w.giveUpAt, errSilent)
	case !w.silent && w.idle > 0:
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

// pause ends the wait.
func (w *watchdog) pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// stop lets go of all that the stream holds.
func (w *watchdog) stop() {
	w.pause()
	w.end(nil)
}

// cause is the limit that ended the stream, or else err.
func (w *watchdog) cause(err error) error {
	if errors.Is(context.Cause(w.ctx), errLimit) {
		return w.next
	}
	return err
}
