package sidecar_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gotower/gotower/examples/destination/controller"
)

// echo is a gRPC service without generated code.
type echo struct {
	left  chan struct{} // receives when a call to Wait sees its caller leave
	fails atomic.Int64  // how many more calls to flaky should fail
}

func (e *echo) unary(ctx context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	_ = grpc.SetHeader(ctx, metadata.Pairs("x-head", "h"))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-tail", "t"))
	switch in.GetValue() {
	case "fail":
		s, _ := status.New(codes.Unknown, "ERROR: ünknown").WithDetails(wrapperspb.String("detail"))
		return nil, s.Err()
	case "wait":
		<-ctx.Done()
		e.left <- struct{}{}
		return nil, ctx.Err()
	}
	return reply(md, in), nil
}

func reply(md metadata.MD, in *wrapperspb.StringValue) *wrapperspb.StringValue {
	return wrapperspb.String(in.GetValue() + " " + md.Get("x-say")[0] + " " + md.Get(":authority")[0])
}

// flaky responds after the request has ended, because a request with an earlier response is not
// retried.
func (e *echo) flaky(stream grpc.ServerStream) error {
	in := new(wrapperspb.StringValue)
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
		return status.Errorf(codes.InvalidArgument, "more than one message: %v", err)
	}
	stream.SetTrailer(metadata.Pairs("x-tail", "t"))
	if err := stream.SendHeader(nil); err != nil { // so that the status has to come in trailers
		return err
	}
	if e.fails.Add(-1) >= 0 {
		return status.Error(codes.Unavailable, "away")
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	return stream.SendMsg(reply(md, in))
}

func (e *echo) chat(stream grpc.ServerStream) error {
	stream.SetTrailer(metadata.Pairs("x-tail", "t"))
	for {
		in := new(wrapperspb.StringValue)
		switch err := stream.RecvMsg(in); {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
		if err := stream.SendMsg(in); err != nil {
			return err
		}
	}
}

func (e *echo) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "test.Echo",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(
			_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor,
		) (any, error) {
			in := new(wrapperspb.StringValue)
			if err := dec(in); err != nil {
				return nil, err
			}
			return e.unary(ctx, in)
		}}},
		Streams: []grpc.StreamDesc{{
			StreamName: "Chat", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return e.chat(stream) },
		}, {
			StreamName: "Flaky", ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return e.flaky(stream) },
		}},
	}
}

// grpcTown returns a gRPC server behind a proxy, and a client for it.
func grpcTown(t *testing.T, routes ...controller.Route) (*echo, *grpc.ClientConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	e := &echo{left: make(chan struct{}, 20)}
	srv.RegisterService(e.desc(), e)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	cfg := at("echo.example:8080", l.Addr().String())
	d := cfg.Destinations["echo.example:8080"]
	d.Profile = &controller.Profile{Routes: routes, Budget: &controller.RetryBudget{MinPerSecond: 1, TTL: 10 * time.Second}}
	cfg.Destinations["echo.example:8080"] = d
	ctl, _ := serveController(t, "127.0.0.1:0", cfg)
	tn := newTestProxy(t, ctl)
	conn, err := grpc.NewClient("passthrough:///"+tn.Addr,
		grpc.WithAuthority("echo.example:8080"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return e, conn
}

func TestGRPCUnary(t *testing.T) {
	_, conn := grpcTown(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-say", "hi")
	var head, tail metadata.MD
	out := new(wrapperspb.StringValue)
	require.NoError(t, conn.Invoke(ctx, "/test.Echo/Unary", wrapperspb.String("hello"), out, grpc.Header(&head), grpc.Trailer(&tail)))
	require.Equal(t, "hello hi echo.example:8080", out.GetValue())
	require.Equal(t, []string{"h"}, head.Get("x-head"))
	require.Equal(t, []string{"t"}, tail.Get("x-tail"))

	err := conn.Invoke(ctx, "/test.Echo/Unary", wrapperspb.String("fail"), out, grpc.Trailer(&tail))
	s := status.Convert(err)
	require.Equal(t, codes.Unknown, s.Code())
	require.Equal(t, "ERROR: ünknown", s.Message())
	require.Len(t, s.Details(), 1)
	require.Equal(t, []string{"t"}, tail.Get("x-tail"), "the trailers of a failure too")

	err = conn.Invoke(ctx, "/test.Echo/None", wrapperspb.String(""), out)
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

func TestGRPCBidirectional(t *testing.T) {
	_, conn := grpcTown(t)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Chat")
	require.NoError(t, err)
	for _, word := range []string{"one", "two", "three"} {
		require.NoError(t, stream.SendMsg(wrapperspb.String(word)))
		in := new(wrapperspb.StringValue)
		require.NoError(t, stream.RecvMsg(in), "each answer comes before the next question")
		require.Equal(t, word, in.GetValue())
	}
	require.NoError(t, stream.CloseSend())
	require.Equal(t, io.EOF, stream.RecvMsg(new(wrapperspb.StringValue)))
	require.Equal(t, []string{"t"}, stream.Trailer().Get("x-tail"))
}

func TestGRPCDeadlineAndCancel(t *testing.T) {
	t.Parallel()
	e, conn := grpcTown(t)
	soonChat(t, conn)
	out := new(wrapperspb.StringValue)
	e.sees(t, func(limit time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err := conn.Invoke(ctx, "/test.Echo/Unary", wrapperspb.String("wait"), out)
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})

	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Chat")
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(wrapperspb.String("x")))
	require.NoError(t, stream.RecvMsg(new(wrapperspb.StringValue)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- conn.Invoke(ctx, "/test.Echo/Unary", wrapperspb.String("wait"), out) }()
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-done))
	require.NoError(t, stream.SendMsg(wrapperspb.String("y")), "other streams go on")
	require.NoError(t, stream.RecvMsg(new(wrapperspb.StringValue)))
	require.NoError(t, stream.CloseSend())
	require.Equal(t, io.EOF, stream.RecvMsg(new(wrapperspb.StringValue)))
}

func TestGRPCProxyErrors(t *testing.T) {
	_, conn := grpcTown(t)
	other, err := grpc.NewClient(conn.Target(), grpc.WithAuthority("127.0.0.1:9"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer other.Close()
	err = other.Invoke(t.Context(), "/test.Echo/Unary", wrapperspb.String("x"), new(wrapperspb.StringValue))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "127.0.0.1:9")
}

func TestGRPCRouteTimeout(t *testing.T) {
	t.Parallel()
	e, conn := grpcTown(t, controller.Route{
		Name: "unary", Match: controller.Match{Path: "/test.Echo/Unary"}, Timeout: time.Second,
	})
	soonChat(t, conn)
	e.sees(t, func(time.Duration) {
		err := conn.Invoke(t.Context(), "/test.Echo/Unary", wrapperspb.String("wait"), new(wrapperspb.StringValue))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.ErrorContains(t, err, "response header timeout")
	})
}

func retryableEcho() controller.Route {
	return controller.Route{
		Name: "echo", Match: controller.Match{Path: "/test.Echo/.*"}, Retryable: true, RetryNonIdempotent: true,
	}
}

func TestGRPCRetryByTrailers(t *testing.T) {
	e, conn := grpcTown(t, retryableEcho())
	e.fails.Store(3)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-say", "hi")
	out := new(wrapperspb.StringValue)
	var tail metadata.MD
	require.NoError(t, conn.Invoke(ctx, "/test.Echo/Flaky", wrapperspb.String("flaky"), out, grpc.Trailer(&tail)))
	require.Equal(t, "flaky hi echo.example:8080", out.GetValue())
	require.Equal(t, []string{"t"}, tail.Get("x-tail"))

	e.fails.Store(100)
	err := conn.Invoke(ctx, "/test.Echo/Flaky", wrapperspb.String("flaky"), out, grpc.Trailer(&tail))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, "away", status.Convert(err).Message(), "the last response as it is")
	require.Equal(t, []string{"t"}, tail.Get("x-tail"))
	require.EqualValues(t, 100-1-7, e.fails.Load(), "10 retries in 10 seconds, of which 3 were spent")
}

// chat sends a message and receives the response.
func chat(t *testing.T, stream grpc.ClientStream, word string) {
	t.Helper()
	require.NoError(t, stream.SendMsg(wrapperspb.String(word)))
	in := new(wrapperspb.StringValue)
	require.NoError(t, stream.RecvMsg(in))
	require.Equal(t, word, in.GetValue())
}

// A retryable route does not delay a conversation.
func TestGRPCBidirectionalOnRetryableRoute(t *testing.T) {
	_, conn := grpcTown(t, retryableEcho())
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Chat")
	require.NoError(t, err)
	for _, word := range []string{"one", "two", "three"} {
		chat(t, stream, word)
	}
	require.NoError(t, stream.CloseSend())
	require.Equal(t, io.EOF, stream.RecvMsg(new(wrapperspb.StringValue)))
	require.Equal(t, []string{"t"}, stream.Trailer().Get("x-tail"))
}

// soonChat talks once, so that the connection to the server exists.
func soonChat(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Chat")
	require.NoError(t, err)
	chat(t, stream, "x")
	require.NoError(t, stream.CloseSend())
	require.Equal(t, io.EOF, stream.RecvMsg(new(wrapperspb.StringValue)))
}

// sees makes calls with increasing deadlines until one reaches the server, and requires that the
// server notices the end.
func (e *echo) sees(t *testing.T, call func(limit time.Duration)) {
	t.Helper()
	for limit := time.Second; limit < soon; limit *= 2 {
		call(limit)
		select {
		case <-e.left:
			return
		case <-time.After(limit):
		}
	}
	e.leaves(t)
}

func (e *echo) leaves(t *testing.T) {
	t.Helper()
	select {
	case <-e.left:
	case <-time.After(soon):
		require.Fail(t, "the server is not notified")
	}
}
