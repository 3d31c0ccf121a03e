package grpclayer

import (
	"context"
	"errors"

	"google.golang.org/grpc/status"
)

// handlerError is what a handler returned, as layers in front of it see it: the
// outcome of a call that was served, and no more. What the handler's own calls
// came to is in its chain, and is not for them: a refusal there is none here,
// where running the handler again would do twice what it did before.
type handlerError struct {
	err    error
	st     *status.Status // that gRPC makes of err
	stated bool           // err has it itself
}

func newHandlerError(err error) *handlerError {
	st, stated := status.FromError(err)
	if !stated {
		st = status.FromContextError(err)
	}
	return &handlerError{err, st, stated}
}

func (e *handlerError) Error() string              { return e.err.Error() }
func (e *handlerError) GRPCStatus() *status.Status { return e.st }

// Is reports whether the handler gave up because its context had ended, where
// gRPC takes that for the status.
func (e *handlerError) Is(target error) bool {
	return !e.stated && (target == context.Canceled || target == context.DeadlineExceeded) && errors.Is(e.err, target)
}
