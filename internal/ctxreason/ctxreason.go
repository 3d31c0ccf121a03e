// Package ctxreason describes the reason why a context ended.
package ctxreason

import (
	"context"
	"errors"
)

// Text tells why ctx has ended: its deadline, or a cancellation by the caller.
func Text(ctx context.Context) string {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return "deadline exceeded"
	}
	return "canceled by the caller"
}
