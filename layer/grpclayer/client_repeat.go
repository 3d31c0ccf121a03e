package grpclayer

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// repeatedStream is a client's stream of responses to one request, which a Retry may
// open again until the header of the responses is there.
//
// The caller has the stream as soon as the first try is open, because the header may
// be long in coming. The layers' Call goes on beside the caller until the header is
// there, the stream has ended, or the Retry has given up.
type repeatedStream struct {
	ctx     context.Context //nolint:containedctx // the caller's
	opened  func()          // has the caller go on
	done    chan struct{}   // closed when Call has returned
	stream  *stream         // what it returned
	err     error           // why there is no stream
	trailer metadata.MD     // of the last try, if there is no stream
	thrown  any             // what a layer panicked with, for the caller

	mu        sync.Mutex
	message   any           // the request
	requested chan struct{} // closed when the request is there, or will not come
	closed    bool          // requested is
}

// repeat opens s beside the caller. It returns when a try is open that may be
// repeated, or when Call has returned.
func repeat(ctx context.Context, s *clientStream, svc Service) (grpc.ClientStream, error) {
	opened := make(chan struct{})
	r := &repeatedStream{
		ctx: ctx, opened: sync.OnceFunc(func() { close(opened) }),
		done: make(chan struct{}), err: errNotReturned, requested: make(chan struct{}),
	}
	s.repeated = r
	go r.run(s, svc)
	select {
	case <-opened:
	case <-r.done:
	}
	select {
	case <-r.done:
	default:
		return r, nil
	}
	opening, err := r.wait()
	if err != nil {
		return nil, err
	}
	return opening, nil
}

func (r *repeatedStream) run(s *clientStream, svc Service) {
	defer close(r.done)
	defer func() {
		if v := recover(); v != nil {
			r.thrown = v
		}
	}()
	opened, err := s.open(r.ctx, svc)
	if err == nil {
		r.stream, r.err = opened, nil
		return
	}
	if answered, ok := errors.AsType[*callError](err); ok {
		r.trailer = answered.trailer
	}
	r.err = s.failed(r.ctx, err)
}

// try sends the request, and waits for the header or the end of one try.
func (r *repeatedStream) try(s *stream) (*Reply, error) {
	r.opened()
	ended := errNotReturned // by a panic
	handed := false
	defer func() {
		if !handed {
			s.end(ended)
		}
	}()
	select {
	case <-r.requested:
		if err := r.send(s.ClientStream); err != nil && !errors.Is(err, io.EOF) {
			ended = s.attempt.answered(err, nil, nil)
			return nil, ended
		}
	case <-s.attempt.Done():
	}
	if header, _ := s.ClientStream.Header(); header == nil { // it has ended without one
		if err := s.ClientStream.RecvMsg(new(emptypb.Empty)); err != nil && !errors.Is(err, io.EOF) {
			ended = s.attempt.answered(err, nil, s.Trailer())
			return nil, ended
		}
	}
	handed = true
	return &Reply{stream: s}, nil
}

func (r *repeatedStream) send(to grpc.ClientStream) error {
	r.mu.Lock()
	message := r.message
	r.mu.Unlock()
	if message != nil {
		if err := to.SendMsg(message); err != nil {
			return err
		}
	}
	return to.CloseSend()
}

// wait waits for the layers' Call, and passes on its panic.
func (r *repeatedStream) wait() (*stream, error) {
	<-r.done
	if r.thrown != nil {
		panic(r.thrown)
	}
	return r.stream, r.err
}

// SendMsg has each try send the request.
func (r *repeatedStream) SendMsg(m any) error {
	if !r.request(m) {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	return nil
}

// CloseSend says that no request will come, unless it has.
func (r *repeatedStream) CloseSend() error {
	r.request(nil)
	return nil
}

// request returns false if the request is there already.
func (r *repeatedStream) request(m any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.message, r.closed = m, true
	close(r.requested)
	return true
}

// RecvMsg waits for the header first, as Header does.
func (r *repeatedStream) RecvMsg(m any) error {
	s, err := r.wait()
	if err != nil {
		return err
	}
	return s.RecvMsg(m)
}

// Header returns nothing if there is none, as that of gRPC: RecvMsg has the reason.
func (r *repeatedStream) Header() (metadata.MD, error) {
	s, err := r.wait()
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // RecvMsg returns the error, as in gRPC
	}
	return s.Header()
}

// Trailer is there when RecvMsg has returned an error.
func (r *repeatedStream) Trailer() metadata.MD {
	s, err := r.wait()
	if err != nil {
		return r.trailer
	}
	return s.Trailer()
}

// Context is that of the try that is being read, or else the caller's.
func (r *repeatedStream) Context() context.Context {
	select {
	case <-r.done:
		if r.stream != nil {
			return r.stream.Context()
		}
	default:
	}
	return r.ctx
}

var _ grpc.ClientStream = (*repeatedStream)(nil)
