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

// logged passes a Resolver on and writes what an operator must know: two lines
// an outage, however long it is.
type logged struct {
	resolve.Resolver
	log *slog.Logger
}

// outage is the time without news of one stream.
type outage struct {
	since    time.Time
	failures int
	brought  bool // there were news on the stream that is read now
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
		log.WarnContext(ctx, "destination stream failed; what is known stays in force", "err", err)
	}
}

func (o *outage) end(ctx context.Context, log *slog.Logger) {
	if o.failures > 0 {
		log.InfoContext(ctx, "destination stream is back", "after", time.Since(o.since), "failures", o.failures)
		*o = outage{}
	}
	o.brought = true
}
