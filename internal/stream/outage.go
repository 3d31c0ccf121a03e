package stream

import (
	"context"
	"errors"
	"log/slog"
)

// Outage logs the errors in a sequence of streams. An outage lasts from the first failure to the
// next item. Its first error is logged as a warning, and its end at info level. Other errors and
// normal ends are logged at debug level.
type Outage struct {
	Log  *slog.Logger
	Name string // the beginning of each message, such as "profile stream"
	Kept string // the effect of an outage, such as "the last profile stays current"

	failures int  // errors since the outage began; 0 if there is none
	received bool // whether the current stream had an item
}

// Failed logs err, the error at the end of a stream. It is a warning only if it begins an outage.
func (o *Outage) Failed(ctx context.Context, err error) {
	// A normal end is expected of a server that works: after an item, during an outage that was logged,
	// or at a limit of the client.
	expected := errors.Is(err, ErrEnded) && (o.received || o.failures > 0 || errors.Is(err, ErrLimit))
	o.received = false
	switch {
	case expected:
		o.Log.DebugContext(ctx, o.Name+" ended", "err", err) //nolint:sloglint // the names are constants
	case o.failures > 0:
		o.failures++
		o.Log.DebugContext(ctx, o.Name+" failed again", "err", err, "failures", o.failures) //nolint:sloglint // the names are constants
	default:
		o.failures = 1
		o.Log.WarnContext(ctx, o.Name+" failed; "+o.Kept, "err", err) //nolint:sloglint // the names are constants
	}
}

// Received records that the current stream had an item. If there is an outage, Received
// logs its end.
func (o *Outage) Received(ctx context.Context) {
	if o.failures > 0 {
		o.Log.InfoContext(ctx, o.Name+" recovered", "failures", o.failures) //nolint:sloglint // the names are constants
		o.failures = 0
	}
	o.received = true
}
