package linkerd

import (
	"context"
	"errors"
	"iter"
	"log/slog"

	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// logged is a Resolver that logs another Resolver's outages.
type logged struct {
	resolve.Resolver
	log *slog.Logger
}

// Resolve yields the same items as the wrapped Resolver, and logs when an outage starts and ends.
func (l logged) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		log := l.log.With("target", target)
		// An Outage logs only its beginning and its end, however often it fails meanwhile.
		out := stream.Outage{Log: log, Name: "destination stream", Kept: "the known endpoints stay in use"}
		for u, err := range l.Resolver.Resolve(ctx, target) {
			switch {
			case err == nil:
				out.Received(ctx)
			// Before the other errors: this is no outage, because the sequence ends.
			case errors.Is(err, resolve.ErrUnresolvable):
				log.WarnContext(ctx, "destination cannot be resolved", "err", err)
			default:
				out.Failed(ctx, err)
			}
			if !yield(u, err) {
				return
			}
		}
	}
}
