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

// Server applies a layer to the handlers of a server. Unary calls and streams
// share its limits and queues. It is safe for concurrent use.
//
// The result of a handler reaches the client unchanged. The layers see only its status. A
// handler may return the rejection of a call that it made itself: the layers do not treat it as
// a rejection of the handler's own request.
type Server struct{ svc Service }

// NewServer applies l, which may be a whole stack (Stack.Layer). A nil layer
// changes nothing. A Server may serve several grpc.Servers.
func NewServer(l Layer) *Server { return &Server{applied(l, leaf())} }

// ServerOptions returns both interceptors. Of several interceptors the first one is outermost.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

// Describe shows the layers and their state.
func (s *Server) Describe() layer.Node { return layer.Describe(s.svc) }

// Unary is a [grpc.UnaryServerInterceptor]. An error has the status code of [Code], and the
// client gets its text. A RetryAfter is sent as grpc-retry-pushback-ms.
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

// Stream is a [grpc.StreamServerInterceptor]. The stream ends for the layers when its handler
// returns. Do not use a Retry or Hedge here, because a handler must not be called twice for one
// stream. If a time limit of a layer ends the handler's context, the client gets the status at
// once, and RecvMsg and SendMsg fail with it.
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

// pushback returns the RetryAfter of err as metadata, rounded up, or nil.
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

	observers       []responseObserver // written before the handler is called
	mu              sync.Mutex
	header, trailer metadata.MD // for an observer
	started, ended  bool
}

func (s *serverStream) serve(ctx context.Context, _ *Call) (*Reply, error) {
	ss := s.stream
	var limited *limitedStream
	if ctx != ss.Context() {
		limited = limit(ctx, ss)
		defer func() { _ = limited.stop() }() // also after a panic
		ss = limited
	}
	if len(s.observers) > 0 {
		ss = &observedStream{ss, s}
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

// limitedStream is a server's stream whose handler has the layers' context.
//
// gRPC has no call that ends a RecvMsg or SendMsg of a running handler, except writing the
// status. The status is written when the layers' context ends before the stream.
type limitedStream struct {
	grpc.ServerStream
	ctx     context.Context //nolint:containedctx // returned by Context
	wire    statusWriter
	release func() bool                   // nil without a limit
	end     atomic.Pointer[status.Status] // nil until the layers ended it, or the handler returned

	opening sync.Mutex  // held while the header or the status is being written
	opened  atomic.Bool // the header was sent
}

// statusWriter is gRPC's transport stream.
type statusWriter interface {
	WriteStatus(st *status.Status) error
}

// handlerReturned is the end of a stream whose handler returned in time.
var handlerReturned = status.New(codes.OK, "") //nolint:gochecknoglobals // never modified

// limit returns ss with the context of the layers.
func limit(ctx context.Context, ss grpc.ServerStream) *limitedStream {
	l := &limitedStream{ServerStream: ss, ctx: ctx}
	wire, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	if ok && ctx.Done() != ss.Context().Done() {
		l.wire = wire
		l.release = context.AfterFunc(ctx, func() { _ = panics.Contain(l.abort) })
	}
	return l
}

// abort ends the stream unless it has ended.
func (l *limitedStream) abort() {
	if l.ServerStream.Context().Err() != nil {
		return
	}
	st := status.FromContextError(l.ctx.Err())
	_ = panics.Contain(func() { // by a method of the cause
		cause := context.Cause(l.ctx)
		code := Code(cause)
		if code == codes.Unknown { // the cause has no status
			code = st.Code()
		}
		st = status.New(code, cause.Error())
	})
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.end.CompareAndSwap(nil, st) {
		_ = l.wire.WriteStatus(st) // fails only without a client
	}
}

// stop is called when the handler has returned. It returns the error that was
// sent to the client before, if any.
func (l *limitedStream) stop() error {
	if l == nil || l.release == nil {
		return nil
	}
	l.release()
	if l.end.CompareAndSwap(nil, handlerReturned) {
		return nil
	}
	return l.end.Load().Err()
}

// Context returns the context of the layers.
func (l *limitedStream) Context() context.Context { return l.ctx }

// RecvMsg receives one message.
func (l *limitedStream) RecvMsg(m any) error { return l.orStatus(l.ServerStream.RecvMsg(m)) }

// SendMsg sends one message.
func (l *limitedStream) SendMsg(m any) error {
	if l.wire != nil && !l.opened.Load() {
		if err := l.open(); err != nil {
			return err
		}
	}
	return l.orStatus(l.ServerStream.SendMsg(m))
}

// open sends the header before the first message. gRPC does that too, but not
// safely beside a goroutine that writes the status.
func (l *limitedStream) open() error {
	l.opening.Lock()
	defer l.opening.Unlock()
	if st := l.end.Load(); st != nil && st != handlerReturned {
		return st.Err()
	}
	_ = l.ServerStream.SendHeader(nil) // SendMsg returns the error
	l.opened.Store(true)
	return nil
}

// orStatus returns the status that ended the stream instead of gRPC's error.
func (l *limitedStream) orStatus(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if st := l.end.Load(); st != nil && st != handlerReturned {
		return st.Err()
	}
	return err
}

// handlerError is the error of a handler for the layers above it. It has the status of
// the error, and matches no other errors, because a rejected call of the handler is not
// a rejection of the handler's own request. The original error stays in its chain.
type handlerError struct {
	err    error
	st     *status.Status // gRPC's status of err
	stated bool           // err has a status
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

// Is reports whether the handler returned because its context had ended.
func (e *handlerError) Is(target error) bool {
	return !e.stated && (target == context.Canceled || target == context.DeadlineExceeded) && errors.Is(e.err, target)
}

// responseObserver observes the response of a server's stream while its handler runs.
type responseObserver struct {
	started func(*Reply)
	data    func(n int, p []byte)
}

// observedStream reports the response of a handler to the observers.
type observedStream struct {
	grpc.ServerStream
	call *serverStream
}

func (h *observedStream) SetHeader(md metadata.MD) error {
	err := h.ServerStream.SetHeader(md)
	if err == nil {
		h.call.add(&h.call.header, md)
	}
	return err
}

func (h *observedStream) SendHeader(md metadata.MD) error {
	err := h.ServerStream.SendHeader(md)
	if err == nil {
		h.call.add(&h.call.header, md)
		h.call.begin()
	}
	return err
}

func (h *observedStream) SetTrailer(md metadata.MD) {
	h.ServerStream.SetTrailer(md)
	h.call.add(&h.call.trailer, md)
}

func (h *observedStream) SendMsg(m any) error {
	h.call.begin()
	err := h.ServerStream.SendMsg(m)
	if err == nil {
		h.call.data(sizeOf(m))
	}
	return err
}

func (s *serverStream) add(to *metadata.MD, md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		*to = metadata.Join(*to, md)
	}
}

// begin and data do nothing after the handler has returned.
func (s *serverStream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.started {
		return
	}
	s.started = true
	for _, h := range s.observers {
		h.started(&Reply{Header: s.header})
	}
}

func (s *serverStream) data(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	for _, h := range s.observers {
		h.data(n, nil)
	}
}

func (s *serverStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}
