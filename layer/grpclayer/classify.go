package grpclayer

import (
	"errors"

	"github.com/gotower/gotower/layer"
)

// Classify is the [layer.Classifier] of gRPC, by the status code that an error
// stands for (see [Code]):
//
//	UNAVAILABLE, the time limit of a single try         Retryable
//	RESOURCE_EXHAUSTED                                  Throttled
//	UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED,
//	INTERNAL, DATA_LOSS                                 Failure
//
// Everything else is a Success: the server did what it is there for. The
// failures are those of linkerd's proxy, and the same as httplayer's.
//
// A client's stream is a Success when it opened, and is judged again at its
// end.
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.Is(o.Err, layer.ErrAttemptTimeout):
		return layer.Retryable
	}
	return layer.ClassifyGRPC(uint32(Code(o.Err)))
}
