package emojivoto

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// The full names of the gRPC services.
const (
	EmojiService  = "emojivoto.v1.EmojiService"
	VotingService = "emojivoto.v1.VotingService"
)

// fullMethod returns the path of a gRPC method.
func fullMethod(service, method string) string { return "/" + service + "/" + method }

// register registers a service with the given name and methods. Unlike generated code, it passes no
// server value to gRPC, because the methods' handlers are closures.
func register(r grpc.ServiceRegistrar, service string, methods []grpc.MethodDesc) {
	r.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: methods}, nil)
}

// unary returns the gRPC method with the given name. For each request, it increments its counter in
// r, waits for r's latency, and returns call's result. message returns an empty message, into which
// the request is decoded.
func unary[Req, Rsp proto.Message](
	r *replica, service, method string, message func() Req, call func(context.Context, Req) (Rsp, error),
) grpc.MethodDesc {
	// All counters exist before the first request.
	count := r.counter(method)
	// serve handles a decoded request, and handle is what gRPC calls: it decodes the request and calls serve.
	serve := func(ctx context.Context, req any) (any, error) {
		count.Add(1)
		if err := r.pause(ctx); err != nil {
			return nil, err
		}
		return call(ctx, req.(Req)) //nolint:errcheck,forcetypeassert // message made it
	}
	// gRPC calls handle for each request. decode fills in the message.
	handle := func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := message()
		if err := decode(req); err != nil {
			return nil, err
		}
		// An interceptor, if the server has one, calls serve itself.
		if interceptor == nil {
			return serve(ctx, req)
		}
		return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: fullMethod(service, method)}, serve)
	}
	return grpc.MethodDesc{MethodName: method, Handler: handle}
}
