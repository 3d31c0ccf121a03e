package linkerd

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// logged is a Resolver that logs the start and the end of each outage.
type logged struct {
	resolve.Resolver
	log *slog.Logger
}

// outage is the state of one call of Resolve. During an outage, streams end without an update.
type outage struct {
	since    time.Time
	failures int
	brought  bool // whether the current stream has yielded an update
}

func (l logged) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		log := l.log.With("target", target)
		var out outage
		for u, err := range l.Resolver.Resolve(ctx, target) {
			if err != nil {
				out.add(ctx, log, err)
			} else {
				out.end(ctx, log)
			}
			if !yield(u, err) {
				return
			}
		}
	}
}

func (o *outage) add(ctx context.Context, log *slog.Logger, err error) {
	routine := o.brought || o.failures > 0 || errors.Is(err, stream.ErrLimit)
	o.brought = false
	switch {
	case errors.Is(err, resolve.ErrUnresolvable):
		log.WarnContext(ctx, "destination cannot be resolved", "err", err)
	case errors.Is(err, stream.ErrEnded) && routine:
		log.DebugContext(ctx, "destination stream ended", "err", err)
	case o.failures > 0:
		o.failures++
		log.DebugContext(ctx, "destination stream failed again", "err", err, "failures", o.failures)
	default:
		o.failures, o.since = 1, time.Now()
		log.WarnContext(ctx, "destination stream failed; the known endpoints stay in use", "err", err)
	}
}

func (o *outage) end(ctx context.Context, log *slog.Logger) {
	if o.failures > 0 {
		log.InfoContext(ctx, "destination stream recovered", "after", time.Since(o.since), "failures", o.failures)
		*o = outage{}
	}
	o.brought = true
}
