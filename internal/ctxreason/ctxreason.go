// Package ctxreason describes why a context ended.
package ctxreason

import (
	"context"
	"errors"
)

// Text returns the reason of a ctx that has ended: its deadline, or that the
// caller canceled it.
func Text(ctx context.Context) string {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return "deadline exceeded"
	}
	return "canceled by the caller"
}
