package grpclayer

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Server puts a layer in front of the handlers of a server, unary and streams
// alike: they share its limits and queues. It is safe for concurrent use.
//
// The result of a handler reaches the client as it would without layers. The
// layers see only its status: a rejected call inside the handler is not a
// rejection of the handler. That holds for a second Server behind this one,
// too, so put layers that work together into one.
type Server struct{ svc Service }

// NewServer applies l, which may be a whole stack (Stack.Layer). A nil layer
// changes nothing. A Server may serve several grpc.Servers.
func NewServer(l Layer) *Server { return &Server{applied(l, leaf())} }

// UnaryServerInterceptor is [NewServer] for unary calls alone.
func UnaryServerInterceptor(l Layer) grpc.UnaryServerInterceptor { return NewServer(l).Unary }

// StreamServerInterceptor is [NewServer] for streams alone.
func StreamServerInterceptor(l Layer) grpc.StreamServerInterceptor { return NewServer(l).Stream }

// ServerOptions has both kinds of calls go through the layers. They come in
// the order in which options are given: first is outermost.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

// Describe shows the layers and their state.
func (s *Server) Describe() layer.Node { return layer.Describe(s.svc) }

// Unary is a [grpc.UnaryServerInterceptor]. An error has the code that [Code]
// gives it, and the client sees its text. One that says when to come back also
// says so to the client (grpc-retry-pushback-ms).
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	u := &serverUnary{handler: handler}
	u.Call = Call{Method: info.FullMethod, Message: req, incoming: true, ctx: ctx, rpc: u}
	rsp, err := s.svc.Call(ctx, &u.Call)
	switch {
	case err != nil:
		if md := pushback(err); md != nil {
			_ = grpc.SetTrailer(ctx, md) // fails only if the call has ended
		}
		return nil, toStatus(ctx, err)
	case rsp == nil:
		return nil, errNoReply
	}
	return rsp.Message, nil
}

// Stream is a [grpc.StreamServerInterceptor]. The stream is over when its
// handler returns, and so is the layers' part of it. A handler must not be
// called twice for one stream: no layer that sends again belongs here. Where a
// layer ends the handler's context, by a time limit, the client has the status
// at once, and RecvMsg and SendMsg fail with it.
func (s *Server) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	h := &serverStream{srv: srv, stream: ss, handler: handler}
	h.Call = Call{
		Method: info.FullMethod, incoming: true, ctx: ss.Context(), rpc: h,
		ClientStreams: info.IsClientStream, ServerStreams: info.IsServerStream,
	}
	_, err := s.svc.Call(ss.Context(), &h.Call)
	if err != nil {
		if md := pushback(err); md != nil {
			ss.SetTrailer(md)
		}
	}
	return toStatus(ss.Context(), err)
}

// pushback is what a client is told of when to come back, rounded up.
func pushback(err error) metadata.MD {
	after, ok := layer.RetryAfter(err)
	if !ok {
		return nil
	}
	after = min(after, maxPushback)
	return metadata.Pairs(pushbackKey, strconv.FormatInt((after.Nanoseconds()+999_999)/1_000_000, 10))
}

type serverUnary struct {
	Call
	handler grpc.UnaryHandler
}

func (u *serverUnary) serve(ctx context.Context, c *Call) (*Reply, error) {
	rsp, err := u.handler(ctx, c.Message)
	if err != nil {
		return nil, newHandlerError(err)
	}
	return &Reply{Message: rsp}, nil
}

type serverStream struct {
	Call
	srv     any
	stream  grpc.ServerStream
	handler grpc.StreamHandler

	hear            []hearer // written before the handler is called
	mu              sync.Mutex
	header, trailer metadata.MD // for an observer
	begun, over     bool
}

func (s *serverStream) serve(ctx context.Context, _ *Call) (*Reply, error) {
	ss := s.stream
	var limited *limitedStream
	if ctx != ss.Context() {
		limited = limit(ctx, ss)
		defer func() { _ = limited.stop() }() // where the handler panics
		ss = limited
	}
	if len(s.hear) > 0 {
		ss = &heardStream{ss, s}
		defer s.end()
	}
	err := s.handler(s.srv, ss)
	if cut := limited.stop(); cut != nil && err == nil {
		err = cut
	}
	if err != nil {
		return nil, newHandlerError(err)
	}
	return &Reply{Header: s.header, Trailer: s.trailer}, nil
}

// limitedStream is a server's stream whose handler sees the layers' context.
//
// A handler that waits in RecvMsg or SendMsg waits for the stream, and gRPC has
// no call that ends that before the handler returns. What it has is the status,
// which ends the stream: it is sent as soon as the layers' context ends first.
type limitedStream struct {
	grpc.ServerStream
	ctx     context.Context //nolint:containedctx // what Context returns
	wire    statusWriter
	release func() bool                   // nil where the layers end nothing
	end     atomic.Pointer[status.Status] // nil until the layers ended it, or the handler returned

	opening sync.Mutex  // held while the header or the status is being written
	opened  atomic.Bool // the header is on its way
}

// statusWriter is gRPC's own side of a stream.
type statusWriter interface {
	WriteStatus(st *status.Status) error
}

// returned is the end of a stream whose handler returned in time.
var returned = status.New(codes.OK, "") //nolint:gochecknoglobals // it never changes

// limit gives ss the context that layers made of its own.
func limit(ctx context.Context, ss grpc.ServerStream) *limitedStream {
	l := &limitedStream{ServerStream: ss, ctx: ctx}
	wire, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	if ok && ctx.Done() != ss.Context().Done() {
		l.wire = wire
		l.release = context.AfterFunc(ctx, func() { _ = panics.Contain(l.cut) })
	}
	return l
}

// cut ends the stream, unless that ended by itself.
func (l *limitedStream) cut() {
	if l.ServerStream.Context().Err() != nil {
		return
	}
	st := status.FromContextError(l.ctx.Err())
	_ = panics.Contain(func() { // by a method of the cause
		cause := context.Cause(l.ctx)
		code := Code(cause)
		if code == codes.Unknown { // a cause that says nothing to gRPC
			code = st.Code()
		}
		st = status.New(code, cause.Error())
	})
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.end.CompareAndSwap(nil, st) {
		_ = l.wire.WriteStatus(st) // fails only where the client has gone
	}
}

// stop is called when the handler has returned. It returns the error that the
// client was told before that, if it was.
func (l *limitedStream) stop() error {
	if l == nil || l.release == nil {
		return nil
	}
	l.release()
	if l.end.CompareAndSwap(nil, returned) {
		return nil
	}
	return l.end.Load().Err()
}

// Context is the stream's, with what the layers made of it.
func (l *limitedStream) Context() context.Context { return l.ctx }

// RecvMsg receives one message.
func (l *limitedStream) RecvMsg(m any) error { return l.why(l.ServerStream.RecvMsg(m)) }

// SendMsg sends one message.
func (l *limitedStream) SendMsg(m any) error {
	if l.wire != nil && !l.opened.Load() {
		if err := l.open(); err != nil {
			return err
		}
	}
	return l.why(l.ServerStream.SendMsg(m))
}

// open sends the header before the first message. gRPC does that too, but not
// safely beside a goroutine that writes the status.
func (l *limitedStream) open() error {
	l.opening.Lock()
	defer l.opening.Unlock()
	if st := l.end.Load(); st != nil && st != returned {
		return st.Err()
	}
	_ = l.ServerStream.SendHeader(nil) // fails where it was sent, or SendMsg will say why
	l.opened.Store(true)
	return nil
}

// why is the reason of an error: to gRPC it is that the stream is over.
func (l *limitedStream) why(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if st := l.end.Load(); st != nil && st != returned {
		return st.Err()
	}
	return err
}

// handlerError is the result of a handler for the layers in front of it: the
// outcome of a served call. The errors of the handler's own calls stay in its
// chain, but do not match: running the handler again would repeat its effects.
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
