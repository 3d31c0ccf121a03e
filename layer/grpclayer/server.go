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

// Server applies a layer to a server's handlers. All calls, unary or streaming, share the layer's
// limits and queues. A Server is safe for concurrent use.
//
// What a handler returns reaches the client unchanged. If a handler returns an error, the layers
// see only its text and its status. For example, if a handler returns the rejection of another call
// that it made, the layers do not take it for a rejection of the request to the handler.
type Server struct{ svc Service }

// NewServer returns a Server that applies l to each call. l may be a whole stack, see
// [layer.Stack.Layer]. If l is nil, calls are unchanged. A Server may be used by several
// grpc.Servers.
func NewServer(l Layer) *Server { return &Server{applied(l, leaf())} }

// ServerOptions returns options that install both interceptors of s. If a grpc.Server has
// several interceptors, the first one is outermost.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

// Describe returns the layers of s and their state.
func (s *Server) Describe() layer.Node { return layer.Describe(s.svc) }

// Unary is a [grpc.UnaryServerInterceptor] that runs the handler below the layers. If the call
// fails, the client gets the error text, with the status code from [Code], and any RetryAfter in
// the trailer field grpc-retry-pushback-ms.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	u := &serverUnary{handler: handler}
	u.Call = Call{Method: info.FullMethod, Message: req, incoming: true, ctx: ctx, rpc: u}
	rsp, err := s.svc.Call(ctx, &u.Call)
	// The status of the error is for gRPC; RetryAfter has a place only in a trailer field.
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

// Stream is a [grpc.StreamServerInterceptor] that runs the handler of a stream below the layers.
// For the layers the stream ends when the handler returns. You must not use a Retry or Hedge
// here, because a handler must not be called twice for one stream.
//
// If a layer's time limit ends the handler's context, the client gets the status at once. After
// that, the handler's RecvMsg and SendMsg fail with the status.
func (s *Server) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	h := &serverStream{srv: srv, stream: ss, handler: handler}
	h.Call = Call{
		Method: info.FullMethod, incoming: true, ctx: ss.Context(), rpc: h,
		ClientStreams: info.IsClientStream, ServerStreams: info.IsServerStream,
	}
	_, err := s.svc.Call(ss.Context(), &h.Call)
	// A trailer field carries RetryAfter, which a status cannot.
	if err != nil {
		if md := pushback(err); md != nil {
			ss.SetTrailer(md)
		}
	}
	return toStatus(ss.Context(), err)
}

// pushback returns metadata that asks the client to wait: err's RetryAfter in milliseconds,
// rounded up, or nil if there is none.
func pushback(err error) metadata.MD {
	after, ok := layer.RetryAfter(err)
	if !ok {
		return nil
	}
	after = min(after, maxPushback)
	// Rounded up to whole milliseconds.
	return metadata.Pairs(pushbackKey, strconv.FormatInt((after.Nanoseconds()+999_999)/1_000_000, 10))
}

// serverUnary is a unary call on a server.
type serverUnary struct {
	Call
	handler grpc.UnaryHandler
}

// serve runs the handler with the layers' context and the message that the layers pass on.
func (u *serverUnary) serve(ctx context.Context, c *Call) (*Reply, error) {
	rsp, err := u.handler(ctx, c.Message)
	if err != nil {
		return nil, newHandlerError(err)
	}
	return &Reply{Message: rsp}, nil
}

// serverStream is a streaming call on a server.
type serverStream struct {
	Call
	srv     any
	stream  grpc.ServerStream
	handler grpc.StreamHandler

	observers       []layer.ResponseObserver[*Reply] // written before the handler is called
	mu              sync.Mutex
	header, trailer metadata.MD // metadata from the handler; recorded only for observers
	started, ended  bool
}

// serve runs the handler. If a layer has replaced the context, the handler's stream gets it too, and
// ends when it ends.
func (s *serverStream) serve(ctx context.Context, _ *Call) (*Reply, error) {
	ss := s.stream
	var limited *limitedStream
	// A layer has changed the context, for example by a time limit.
	if ctx != ss.Context() {
		limited = limit(ctx, ss)
		defer func() { _ = limited.stop() }() // also after a panic
		ss = limited
	}
	// Only a stream with observers pays for recording its metadata.
	if len(s.observers) > 0 {
		ss = &observedStream{ss, s}
		defer s.end()
	}
	err := s.handler(s.srv, ss)
	// The client got the layer's status already, so the handler's success does not count.
	if cut := limited.stop(); cut != nil && err == nil {
		err = cut
	}
	if err != nil {
		return nil, newHandlerError(err)
	}
	return &Reply{Header: s.header, Trailer: s.trailer}, nil
}

// limitedStream is a server's stream for the handler, with the context of the layers.
//
// If that context ends before the handler returns, the limitedStream writes the status to the
// client. gRPC offers no other way to end a running handler's RecvMsg or SendMsg.
type limitedStream struct {
	grpc.ServerStream
	ctx     context.Context //nolint:containedctx // returned by Context
	wire    statusWriter
	release func() bool                   // stops watching the context; nil if the layers did not add a limit
	end     atomic.Pointer[status.Status] // nil until a layer has ended the stream or the handler has returned

	opening sync.Mutex  // held while the header or the status is being written
	opened  atomic.Bool // the header was sent
}

// statusWriter writes the status that ends a stream. gRPC's transport stream implements it.
type statusWriter interface {
	WriteStatus(st *status.Status) error
}

// handlerReturned is the value of limitedStream.end if the handler returned before a layer
// ended the stream.
var handlerReturned = status.New(codes.OK, "") //nolint:gochecknoglobals // never modified

// limit returns ss with ctx, the context of the layers, in place of its own context. If a layer has
// set a time limit, the stream also ends when ctx ends. limit recognizes this case by the Done
// channels of the two contexts, which then differ.
func limit(ctx context.Context, ss grpc.ServerStream) *limitedStream {
	l := &limitedStream{ServerStream: ss, ctx: ctx}
	wire, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	// Only a layer that sets a limit or cancels changes the Done channel; a layer that adds a value does not.
	if ok && ctx.Done() != ss.Context().Done() {
		l.wire = wire
		l.release = context.AfterFunc(ctx, func() { _ = panics.Contain(l.abort) })
	}
	return l
}

// abort ends the stream after the layers' context has ended: it sends the client the status of the
// context's cause, or of its error if the cause has none. It does nothing if the stream has ended, or
// if the handler has returned before.
func (l *limitedStream) abort() {
	// The client has gone, or gRPC has ended the stream.
	if l.ServerStream.Context().Err() != nil {
		return
	}
	st := status.FromContextError(l.ctx.Err())
	_ = panics.Contain(func() { // a method of the cause may panic; then st stays as it is
		cause := context.Cause(l.ctx)
		code := Code(cause)
		if code == codes.Unknown { // the cause has no status
			code = st.Code()
		}
		st = status.New(code, cause.Error())
	})
	// While a header is being sent, no status may be written.
	l.opening.Lock()
	defer l.opening.Unlock()
	// Only one of the layer and the handler's return ends the stream.
	if l.end.CompareAndSwap(nil, st) {
		_ = l.wire.WriteStatus(st) // fails only without a client
	}
}

// stop ends the observation of the context, and must be called when the handler has returned. If a
// layer has ended the stream before, stop returns the status that the client got, as an error.
// Otherwise it returns nil. l may be nil.
func (l *limitedStream) stop() error {
	if l == nil || l.release == nil {
		return nil
	}
	// No longer watched, but abort may be running. The exchange below decides between the two.
	l.release()
	if l.end.CompareAndSwap(nil, handlerReturned) {
		return nil
	}
	return l.end.Load().Err()
}

// Context returns the layers' context, which also ends when a layer's time limit expires.
func (l *limitedStream) Context() context.Context { return l.ctx }

// RecvMsg receives one message. If a layer has ended the stream, it returns the status that
// the client got.
func (l *limitedStream) RecvMsg(m any) error { return l.orStatus(l.ServerStream.RecvMsg(m)) }

// SendMsg sends one message. If a layer has ended the stream, it returns the status that
// the client got.
func (l *limitedStream) SendMsg(m any) error {
	// Only while a layer can end the stream must the header be sent first.
	if l.wire != nil && !l.opened.Load() {
		if err := l.open(); err != nil {
			return err
		}
	}
	return l.orStatus(l.ServerStream.SendMsg(m))
}

// open sends the header before the first message. If a layer has ended the stream, open
// returns the status. gRPC itself would send the header with the first message, but not
// safely while another goroutine writes the status.
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

// orStatus returns the error for the handler after a gRPC method returned err. If a layer has
// ended the stream, and err is not io.EOF, that is the status that the client got. Otherwise it
// returns err.
func (l *limitedStream) orStatus(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if st := l.end.Load(); st != nil && st != handlerReturned {
		return st.Err()
	}
	return err
}

// handlerError is a handler's error as the layers see it. It keeps the text and the status, but
// does not match the errors in its chain. Otherwise the rejection of a call that the handler made
// would count as a rejection of the request to the handler.
type handlerError struct {
	err    error
	st     *status.Status // the status for err
	stated bool           // err has a status itself; if false, st is derived from err
}

// newHandlerError returns the error for the layers in place of err, which the handler returned.
func newHandlerError(err error) *handlerError {
	st, stated := status.FromError(err)
	// Without a status, the end of a context has its own code.
	if !stated {
		st = status.FromContextError(err)
	}
	return &handlerError{err, st, stated}
}

func (e *handlerError) Error() string { return e.err.Error() }

func (e *handlerError) GRPCStatus() *status.Status { return e.st }

// Is reports whether target is context.Canceled or context.DeadlineExceeded and the handler
// returned that error without a status.
func (e *handlerError) Is(target error) bool {
	return !e.stated && (target == context.Canceled || target == context.DeadlineExceeded) && errors.Is(e.err, target)
}

// observedStream is a server's stream as the handler gets it if taps observe the call. When the handler
// sends a header or a message, it notifies the call's observers.
type observedStream struct {
	grpc.ServerStream
	call *serverStream
}

// SetHeader records the header, which gRPC sends later.
func (h *observedStream) SetHeader(md metadata.MD) error {
	err := h.ServerStream.SetHeader(md)
	if err == nil {
		h.call.add(&h.call.header, md)
	}
	return err
}

// SendHeader records the header and reports it.
func (h *observedStream) SendHeader(md metadata.MD) error {
	err := h.ServerStream.SendHeader(md)
	if err == nil {
		h.call.add(&h.call.header, md)
		h.call.begin()
	}
	return err
}

// SetTrailer records the trailer.
func (h *observedStream) SetTrailer(md metadata.MD) {
	h.ServerStream.SetTrailer(md)
	h.call.add(&h.call.trailer, md)
}

// SendMsg reports the header, which gRPC sends with the first message, and then the message.
func (h *observedStream) SendMsg(m any) error {
	h.call.begin()
	err := h.ServerStream.SendMsg(m)
	if err == nil {
		h.call.data(sizeOf(m))
	}
	return err
}

// add adds md to the metadata that to points to, unless the handler has returned.
func (s *serverStream) add(to *metadata.MD, md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		*to = metadata.Join(*to, md)
	}
}

// begin reports the header to the observers. Later calls, and calls after the handler has returned,
// do nothing.
func (s *serverStream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Headers are reported once, and not after the end.
	if s.ended || s.started {
		return
	}
	s.started = true
	for _, h := range s.observers {
		h.ResponseStarted(&Reply{Header: s.header})
	}
}

// data reports a message of n bytes to the observers.
func (s *serverStream) data(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// What comes after the end does not count any longer.
	if s.ended {
		return
	}
	for _, h := range s.observers {
		h.ResponseData(n, nil)
	}
}

// end stops the reports, because a handler may have left goroutines that still use the stream.
func (s *serverStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}
