package tap

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// prompt is a connection whose streams fail if they are not answered in time,
// or if they fall silent. gRPC itself waits for ever: on a process that was
// stopped, or on a port that something else listens to.
type prompt struct {
	grpc.ClientConnInterface
	patience time.Duration // for the headers of the answer, and beyond between
	between  time.Duration // two messages; 0 is for ever
}

// NewStream begins a stream. What it starts ends with ctx.
func (p prompt) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if p.ClientConnInterface == nil {
		return nil, status.Error(codes.InvalidArgument, "the process has no connection")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &prompted{prompt: p}
	s.timer = time.AfterFunc(p.patience, func() {
		cancel(status.Errorf(codes.DeadlineExceeded, "no answer for more than %v", p.patience))
	})
	defer s.timer.Stop()
	stream, err := p.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, silence(ctx, err)
	}
	s.ClientStream = stream
	return s, nil
}

type prompted struct {
	grpc.ClientStream
	prompt   prompt
	timer    *time.Timer
	answered bool
}

func (s *prompted) RecvMsg(m any) error {
	defer s.timer.Stop()
	if !s.answered {
		s.timer.Reset(s.prompt.patience)
		if _, err := s.Header(); err != nil {
			return silence(s.Context(), err)
		}
		s.timer.Stop()
		s.answered = true
	}
	if s.prompt.between > 0 {
		s.timer.Reset(sum(s.prompt.between, s.prompt.patience))
	}
	return silence(s.Context(), s.ClientStream.RecvMsg(m))
}

// sum is a + b, or as long as there is if that is more.
func sum(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// silence returns why ctx ended, if it was for want of an answer, or else err.
func silence(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && status.Code(cause) == codes.DeadlineExceeded {
		return cause
	}
	return err
}
