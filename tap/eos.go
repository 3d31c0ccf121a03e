package tap

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

// HTTP/2 error codes, RFC 9113 §7.
const (
	resetInternal uint32 = 2
	resetRefused  uint32 = 7
	resetCancel   uint32 = 8
)

// streamError has the shape of the error with which net/http says that an
// HTTP/2 stream was reset. That error is not exported, but its As method fills
// any struct with these fields, for just this purpose.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "stream reset: " + strconv.Itoa(int(e.Code)) }

// resetCode is the HTTP/2 error code that goes with the end of a request, or
// nil. ctx is the context of the request.
func resetCode(ctx context.Context, err error) *uint32 {
	var stream streamError
	var coded interface {
		error
		ResetCode() uint32
	}
	switch {
	case err == nil, errors.Is(err, layer.ErrBodyClosedEarly):
		return nil // complete, or its reader had enough
	case errors.Is(err, layer.ErrNotReady):
		return new(resetRefused)
	case errors.As(err, &stream):
		return &stream.Code
	case errors.As(err, &coded):
		return new(coded.ResetCode())
	case ctx.Err() != nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return new(resetCancel)
	}
	return nil
}

// abortCode is that of a response that its own side broke off after it began,
// as net/http's HTTP/2 sends it: unless nobody was there any more to hear it.
func abortCode(ctx context.Context) *uint32 {
	if ctx.Err() != nil {
		return new(resetCancel)
	}
	return new(resetInternal)
}

// grpcStatus parses the value of a grpc-status field. Anything but a number is
// no status.
func grpcStatus(s string) *codes.Code {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return nil
	}
	return new(codes.Code(n))
}
