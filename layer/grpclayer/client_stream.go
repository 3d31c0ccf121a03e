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

	"github.com/gotower/gotower/layer"
)

// Stream is a [grpc.StreamClientInterceptor] that opens each stream through the layers. The slot
// that a stream takes in a layer is free again when the stream ends (see [Completion]). If a
// layer's limit ends the stream, RecvMsg and SendMsg fail with DEADLINE_EXCEEDED and the reason.
//
// A Retry opens a stream again if opening it failed. It repeats an open stream only if that
// consists of one request and many responses, and fails before its header arrives. As for a unary
// call, the method must be idempotent (see [GRPC]), and the class and the budget must allow a
// retry. On such a stream, SendMsg only stores the request, and RecvMsg returns the error from
// sending it. An attempt's time limit applies until the header arrives.
func (c *Client) Stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	// Client.Ready must know which ClientConn makes calls.
	c.live.called(cc)
	s := &clientStream{desc: desc, cc: cc, streamer: streamer}
	s.opts, s.resultOpts = split(opts, isOnFinish) // OnFinish is called once, and not by each attempt
	s.Call = Call{
		Method: method, ctx: ctx, rpc: s,
		ClientStreams: desc.ClientStreams, ServerStreams: desc.ServerStreams,
	}
	if c.layered && desc.ServerStreams && !desc.ClientStreams { // a Retry may repeat it: it has a single request
		return repeat(ctx, s, c.svc)
	}
	opened, err := s.open(ctx, c.svc)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	return opened, nil
}

// errNoStream is a mistake of the layer, so it has no status of a call.
var errNoStream = errors.New("grpclayer: a layer returned a reply without a stream")

// clientStream is the opening of a client's stream, which may be attempted several times.
type clientStream struct {
	Call
	desc       *grpc.StreamDesc
	cc         *grpc.ClientConn
	streamer   grpc.Streamer
	opts       []grpc.CallOption
	resultOpts []grpc.CallOption // options that are called once, when the stream of the caller ends
	repeated   *repeatedStream   // the stream for the caller; nil if the stream is not repeated
}

// open sends the call through svc, the service with the layers. It returns the stream that
// the layers open.
func (s *clientStream) open(ctx context.Context, svc Service) (*stream, error) {
	rsp, err := svc.Call(ctx, &s.Call)
	switch {
	case err != nil:
		return nil, err
	case rsp == nil || rsp.stream == nil:
		return nil, errNoStream
	}
	// The OnFinish options wait for the end of the stream.
	rsp.stream.reportEndTo(s.resultOpts)
	return rsp.stream, nil
}

// failed converts err, the layers' error, to the error for the caller. It also passes that error
// to the OnFinish options of the caller.
func (s *clientStream) failed(ctx context.Context, err error) error {
	// errNoStream has no status that a caller could use.
	if err != errNoStream { //nolint:errorlint // it is made here
		err = toStatus(ctx, err)
	}
	reportEnd(s.resultOpts, err)
	return err
}

// serve makes one attempt to open the stream.
func (s *clientStream) serve(ctx context.Context, c *Call) (*Reply, error) {
	// Each attempt has its own context, so that it can be canceled alone.
	ctx, cancel := context.WithCancel(ctx)
	opening := &stream{attempt: attempt{Context: ctx, method: c.Method}, cancel: cancel, single: !s.desc.ServerStreams}
	// Each attempt gets the caller's options, and one that reports its end.
	opts := append(opening.room[:0], s.opts...)
	opts = append(opts, grpc.OnFinish(opening.finished))
	// As long as the streamer has not returned, err stands for a panic.
	err := errNotReturned
	defer func() { // also if the streamer panics
		if err != nil {
			cancel()
			// gRPC does not end the pick of a stream that was not opened.
			opening.attempt.endPick(err)
		}
	}()
	opened, err := s.streamer(&opening.attempt, s.desc, s.cc, c.Method, opts...)
	if err != nil {
		return nil, opening.attempt.explain(err, nil, nil) // without header and trailer
	}
	opening.ClientStream = opened
	// A Retry above may repeat it: try waits for the header, so that a failure before it reaches the
	// Retry. If try fails, it ends opening by itself, which cancels its context; err is only about opening.
	if s.repeated != nil && layer.WillRetry(ctx) {
		return s.repeated.try(opening)
	}
	return &Reply{stream: opening}, nil
}

// isOnFinish reports whether opt is a [grpc.OnFinish] option.
func isOnFinish(opt grpc.CallOption) bool {
	_, ok := opt.(grpc.OnFinishCallOption)
	return ok
}

// repeatedStream is a client's stream with one request and many responses, as the caller gets it. A
// Retry may open the stream again until the header of the responses arrives, without the caller
// noticing it.
//
// The caller gets the repeatedStream as soon as the first attempt is open, because the header may be late
// and the caller must be able to send the request. Another goroutine sends the call through the layers.
// Their method Call runs until the header arrives, the stream ends, or the Retry ends.
type repeatedStream struct {
	ctx      context.Context //nolint:containedctx // the caller's
	opened   func()          // called when an attempt is open, so that the caller gets the stream
	done     chan struct{}   // closed when the Call of the layers has returned
	stream   *stream         // the open stream, the result of that Call; nil after an error
	err      error           // the error of that Call
	trailer  metadata.MD     // the trailer of the last attempt; nil if the stream is open
	panicked any             // the panic of that Call, for the caller; nil without a panic

	mu        sync.Mutex
	message   any           // the request message; nil if there was none before CloseSend
	requested chan struct{} // closed by SendMsg or CloseSend
	closed    bool          // requested is closed
}

// repeat sends s through svc's layers on another goroutine. It returns a repeatedStream as soon
// as the first attempt is open. If the layers' Call returns earlier, repeat returns that Call's
// result.
func repeat(ctx context.Context, s *clientStream, svc Service) (grpc.ClientStream, error) {
	opened := make(chan struct{})
	r := &repeatedStream{
		ctx: ctx, opened: sync.OnceFunc(func() { close(opened) }),
		// err is replaced when the call returns. If it does not return, because of a panic or Goexit, err stays.
		done: make(chan struct{}), err: errNotReturned, requested: make(chan struct{}),
	}
	s.repeated = r
	go r.run(s, svc)
	// Whichever comes first: an open attempt, or the end of the call without one.
	select {
	case <-opened:
	case <-r.done:
	}
	// Both may have happened. Then the result of Call matters, because it may be an error.
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

// run sends the call through the layers and stores their result. It runs on its own goroutine. A panic
// is kept for the caller's goroutine.
func (r *repeatedStream) run(s *clientStream, svc Service) {
	defer close(r.done)
	defer func() {
		if v := recover(); v != nil {
			r.panicked = v
		}
	}()
	opened, err := s.open(r.ctx, svc)
	if err == nil {
		r.stream, r.err = opened, nil
		return
	}
	// The trailer of the last attempt is for the caller, who cannot get it from a stream.
	if answered, ok := errors.AsType[*callError](err); ok {
		r.trailer = answered.trailer
	}
	r.err = s.failed(r.ctx, err)
}

// try makes one attempt: it sends the request on s and waits for the header. If s ends with
// an error before the header, try returns that error, so that a Retry can open the stream
// again.
func (r *repeatedStream) try(s *stream) (*Reply, error) {
	// The caller gets its stream at the first attempt. Later calls do nothing.
	r.opened()
	ended := errNotReturned // by a panic
	handed := false         // the stream is returned, and stays open
	defer func() {
		if !handed {
			s.end(ended)
		}
	}()
	// The request may come later than the stream is opened, so the attempt waits for it.
	select {
	case <-r.requested:
		// After io.EOF, RecvMsg below returns the reason.
		if err := r.send(s.ClientStream); err != nil && !errors.Is(err, io.EOF) {
			ended = s.attempt.withDetails(err, nil, nil) // without header and trailer
			return nil, ended
		}
	case <-s.attempt.Done():
	}
	// Header waits until the header has arrived or the stream has ended.
	if header, _ := s.ClientStream.Header(); header == nil { // it has ended without one
		if err := s.ClientStream.RecvMsg(new(emptypb.Empty)); err != nil && !errors.Is(err, io.EOF) {
			ended = s.attempt.withDetails(err, nil, s.Trailer())
			return nil, ended
		}
	}
	handed = true
	return &Reply{stream: s}, nil
}

// send sends the request, if there is one, and closes the sending half of the attempt's stream.
func (r *repeatedStream) send(to grpc.ClientStream) error {
	r.mu.Lock()
	message := r.message
	r.mu.Unlock()
	// A request without a message has only its end.
	if message != nil {
		if err := to.SendMsg(message); err != nil {
			return err
		}
	}
	return to.CloseSend()
}

// wait waits until the layers' Call has returned, and returns its result. If that Call panicked,
// wait panics with the same value.
func (r *repeatedStream) wait() (*stream, error) {
	<-r.done
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.stream, r.err
}

// SendMsg stores m as the request message, which every attempt sends. There is only one message, so
// a second call returns an error, and so does a call after CloseSend.
func (r *repeatedStream) SendMsg(m any) error {
	if !r.request(m) {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	return nil
}

// CloseSend marks the end of the request. If SendMsg was not called before, the request is empty.
func (r *repeatedStream) CloseSend() error {
	r.request(nil)
	return nil
}

// request stores m as the request. It returns false if SendMsg or CloseSend was called
// before.
func (r *repeatedStream) request(m any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The request is complete, so nothing may be added.
	if r.closed {
		return false
	}
	r.message, r.closed = m, true
	close(r.requested)
	return true
}

// RecvMsg waits for the header and then receives a message, or returns the stream's error.
func (r *repeatedStream) RecvMsg(m any) error {
	s, err := r.wait()
	if err != nil {
		return err
	}
	return s.RecvMsg(m)
}

// Header waits for the header and returns it. If no stream could be opened, it returns nil
// without an error. RecvMsg then returns the error, as in gRPC.
func (r *repeatedStream) Header() (metadata.MD, error) {
	s, err := r.wait()
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // RecvMsg returns the error, as in gRPC
	}
	return s.Header()
}

// Trailer returns the stream's trailer. You may use it once RecvMsg has returned an error.
func (r *repeatedStream) Trailer() metadata.MD {
	// The call has failed, so the trailer of its last attempt is kept in r.
	s, err := r.wait()
	if err != nil {
		return r.trailer
	}
	return s.Trailer()
}

// Context returns the open stream's context. Before the header has arrived, it returns the
// caller's context.
func (r *repeatedStream) Context() context.Context {
	// Before done is closed, r.stream may not be read.
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
