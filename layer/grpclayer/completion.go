package grpclayer

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Completion is the [layer.Completion] for gRPC. A unary call's reply, and any call on a server,
// ends when Call returns. A client's stream ends at the first of these events:
//
//   - RecvMsg returns an error. After success the error is [io.EOF], and the trailer has
//     arrived.
//   - RecvMsg returns the response to a call that expects only one.
//   - SendMsg returns an error other than [io.EOF].
//   - The ClientConn is closed, or ctx ends.
//
// As in gRPC itself, a stream that is neither read to its end nor canceled stays open.
//
// o.Data is called with 1 for each message, because the length on the wire is unknown here.
func Completion(ctx context.Context, r *Reply, o layer.Observer) *Reply {
	if r == nil || r.stream == nil {
		o.End(nil)
		return r
	}
	r.stream.observe(ctx, o)
	return r
}

// stream is a client's open stream. It notifies the layers, which are observers, of its messages and
// its end, at which they give back its slots.
type stream struct {
	grpc.ClientStream
	attempt attempt
	cancel  context.CancelFunc
	single  bool // the stream has one response and ends with it
	room    [4]grpc.CallOption

	// observers are notified of the stream's progress and its end, and begins when the header
	// arrives. Both are changed under mu, or before the stream is passed to its reader.
	observers []layer.Observer
	begins    []func()

	started atomic.Bool // the header has arrived

	mu    sync.Mutex
	stop  func() bool // stops the observation of the first observer's context; nil without one
	ended bool
	err   error // the error with which the stream has ended

	closed     bool              // finished was called
	closeErr   error             // the argument of finished
	resultOpts []grpc.CallOption // options with OnFinish, to call when gRPC finishes the stream
}

// finished calls the caller's OnFinish options, after gRPC has finished the stream with the error
// err. It also ends s if the ClientConn was closed, because a caller that neither reads nor
// writes would not notice it.
func (s *stream) finished(err error) {
	s.mu.Lock()
	// resultOpts may be set later, by reportEndTo, which then calls them itself.
	s.closed, s.closeErr = true, err
	resultOpts := s.resultOpts
	s.mu.Unlock()
	// A panic is dropped, because this may be a goroutine of gRPC.
	_ = panics.Contain(func() {
		defer reportEnd(resultOpts, err)
		if err == grpc.ErrClientConnClosing { //nolint:errorlint,staticcheck // no server can say just this value
			s.end(err)
		}
	})
}

// reportEndTo arranges for the caller's OnFinish options, which are among resultOpts, to be
// called when the stream ends. If gRPC has finished the stream already, reportEndTo calls them at
// once.
func (s *stream) reportEndTo(resultOpts []grpc.CallOption) {
	s.mu.Lock()
	s.resultOpts = resultOpts
	closed, err := s.closed, s.closeErr
	s.mu.Unlock()
	// gRPC has finished the stream before the options were known.
	if closed {
		reportEnd(resultOpts, err)
	}
}

// observe adds o, and makes the stream end when ctx ends. If the stream has ended already, o is
// notified at once.
func (s *stream) observe(ctx context.Context, o layer.Observer) {
	s.mu.Lock()
	if s.ended {
		err := s.err
		s.mu.Unlock()
		// Without the mutex, because an observer may call back.
		o.End(err)
		return
	}
	s.observers = append(s.observers, o)
	// Only the first observer's context needs to be watched.
	first := s.stop == nil
	s.mu.Unlock()
	if !first || ctx.Done() == nil {
		return
	}
	// The first observer is the innermost one. Its context ends with all others.
	stop := context.AfterFunc(ctx, func() { _ = panics.Contain(func() { s.end(context.Cause(ctx)) }) })
	s.mu.Lock()
	s.stop = stop
	s.mu.Unlock()
}

// RecvMsg receives one message, or returns io.EOF or the stream's error. If the time limit of a
// layer ended the stream, the error includes that limit.
func (s *stream) RecvMsg(m any) error {
	returned := false // for release: gRPC has returned, and not panicked
	defer s.release(&returned)
	err := s.ClientStream.RecvMsg(m)
	// The header has arrived at the latest with the first message or the successful end.
	if err == nil || errors.Is(err, io.EOF) {
		s.begin()
	}
	if err == nil {
		// The observers are complete before the stream is passed to its reader, so they are read without mu.
		s.attempt.data()
		for _, o := range s.observers {
			reportMessage(o, m)
		}
	}
	switch {
	// A single response is the last message. io.EOF is the successful end.
	case err == nil && s.single, errors.Is(err, io.EOF):
		s.end(nil)
	case err != nil:
		header, _ := s.ClientStream.Header() // arrived, or never will
		err = s.broken(err, header, s.Trailer())
	}
	returned = true
	return err
}

// Header waits for the header and returns it. The header is nil if the stream has ended without one.
func (s *stream) Header() (metadata.MD, error) {
	// For release, which ends the stream if gRPC panics.
	returned := false
	defer s.release(&returned)
	md, err := s.ClientStream.Header()
	// A stream that has ended without a header returns nil.
	if err == nil && md != nil {
		s.begin() // tells the observers, unless RecvMsg was first
	}
	returned = true
	return md, err
}

// begin notifies the [GRPC.OnDeferredResponse] observers that the response header has
// arrived. Only the first call does so, and only before the stream ends.
func (s *stream) begin() {
	// Without the lock for all calls but the first.
	if s.started.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// An observer must not see a header after the end.
	if s.ended || s.started.Swap(true) {
		return
	}
	for _, f := range s.begins {
		f()
	}
}

// SendMsg sends one message. If it returns [io.EOF], RecvMsg returns the stream's error.
func (s *stream) SendMsg(m any) error {
	returned := false // for release: gRPC has returned, and not panicked
	defer s.release(&returned)
	err := s.ClientStream.SendMsg(m)
	// io.EOF only means that the stream has ended: RecvMsg then returns the reason.
	if err != nil && !errors.Is(err, io.EOF) {
		err = s.broken(err, nil, nil) // without header and trailer
	}
	returned = true
	return err
}

// release ends the stream and its pick after a panic in gRPC, which leaves them open. Methods that
// call gRPC defer release, and set *returned to true after gRPC has returned; release then does
// nothing.
func (s *stream) release(returned *bool) {
	if *returned {
		return
	}
	s.attempt.endPick(errNotReturned)
	s.end(errNotReturned)
}

// broken ends the stream after gRPC returned err, and returns the error for the caller. The
// arguments header and trailer come from the response, or are nil.
func (s *stream) broken(err error, header, trailer metadata.MD) error {
	// ended has the details that gRPC leaves out, and is what the layers see.
	ended := s.attempt.withDetails(err, header, trailer)
	s.end(ended)
	if call, ok := ended.(*callError); ok { //nolint:errorlint // it was just made
		return call.simplified()
	}
	return err
}

// hasEnded reports whether the stream has ended for the layers.
func (s *stream) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// end ends the stream for the layers with err, which is nil after success, and cancels it in gRPC. Only
// the first call has an effect.
func (s *stream) end(err error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended, s.err = true, err
	// Copied, because the observers are called without mu.
	observers, stop := s.observers, s.stop
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	// gRPC releases the stream when its context ends.
	defer s.cancel()
	panics.End(observers, err)
}
