package grpclayer

import (
	"context"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gotower/gotower/layer"
)

// Server puts a layer in front of the handlers of a server, unary and streams
// alike: they share its limits and queues. It is safe for concurrent use.
//
// What a handler returns is the outcome of its call and reaches the client as it
// would without layers. They see no more of it than the status that gRPC makes
// of it: that the handler was refused a call of its own is no refusal of theirs.
// That holds for a second Server behind this one, too, so layers that are to work
// together belong into one.
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
			_ = grpc.SetTrailer(ctx, md) // fails only where nobody could read it
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
	header, trailer metadata.MD // if somebody hears
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
