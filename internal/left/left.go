// Package left says why nobody waits for a request any more.
package left

import (
	"context"
	"errors"
)

// Why says it in a few words, of a ctx that is done: whether its time was over,
// be it the caller's or the limit of a layer above, or whether the caller went.
func Why(ctx context.Context) string {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return "its time was over"
	}
	return "the caller has gone"
}
