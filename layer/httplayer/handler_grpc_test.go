package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// greeter is a gRPC server in the manner of gRPC's interop tests.
type greeter struct {
	pb.UnimplementedTestServiceServer
	arrived, gone chan struct{}
	arrive, leave sync.Once
}

func (g *greeter) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	grpc.SetHeader(ctx, metadata.MD{"echo-initial": md["x-initial"], "echo-bin": md["x-bin"], "echo-authority": md[":authority"]})
	grpc.SetTrailer(ctx, metadata.MD{"echo-trailing": md["x-trailing"]})
	return &pb.Empty{}, nil
}

func (g *greeter) UnaryCall(ctx context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if s := r.GetResponseStatus(); s.GetCode() != 0 {
		grpc.SetTrailer(ctx, metadata.Pairs("with", "the error"))
		st, err := status.New(codes.Code(s.GetCode()), s.GetMessage()).WithDetails(&pb.EchoStatus{Code: 7, Message: "detail"})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	if r.GetResponseSize() < 0 {
		g.arrive.Do(func() { close(g.arrived) })
		<-ctx.Done()
		g.leave.Do(func() { close(g.gone) })
		return nil, ctx.Err()
	}
	return &pb.SimpleResponse{Payload: payload(int(r.GetResponseSize()))}, nil
}

func (g *greeter) StreamingOutputCall(r *pb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
	for _, p := range r.GetResponseParameters() {
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: payload(int(p.GetSize()))}); err != nil {
			return err
		}
	}
	return nil
}

func (g *greeter) StreamingInputCall(s grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
	sum := 0
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: int32(sum)})
		}
		if err != nil {
			return err
		}
		sum += len(r.GetPayload().GetBody())
	}
}

func (g *greeter) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if st := r.GetResponseStatus(); st.GetCode() != 0 {
			return status.Error(codes.Code(st.GetCode()), st.GetMessage())
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
}

func payload(n int) *pb.Payload { return &pb.Payload{Body: []byte(strings.Repeat("x", n))} }

// grpcHop is a gRPC client of a proxy, in front of a gRPC server.
func grpcHop(t *testing.T, g *greeter) pb.TestServiceClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, g)
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	return grpcClient(t, serve(t, Handler(endpoint(t, l.Addr().String()))))
}

func grpcClient(t *testing.T, addr string) pb.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return pb.NewTestServiceClient(conn)
}

func TestGRPCUnary(t *testing.T) {
	c := grpcHop(t, &greeter{})
	for _, size := range []int{0, 1, 100_000, 2 << 20} {
		rsp, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: int32(size), Payload: payload(size)})
		require.NoError(t, err)
		assert.Len(t, rsp.GetPayload().GetBody(), size)
	}
}

func TestGRPCMetadata(t *testing.T) {
	c := grpcHop(t, &greeter{})
	ctx := metadata.AppendToOutgoingContext(t.Context(),
		"x-initial", "one", "x-initial", "two", "x-bin", "\x00\x01\xff", "x-trailing", "three")
	var header, trailer metadata.MD
	_, err := c.EmptyCall(ctx, &pb.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer))
	require.NoError(t, err)
	assert.Equal(t, []string{"one", "two"}, header["echo-initial"])
	assert.Equal(t, []string{"\x00\x01\xff"}, header["echo-bin"])
	assert.Len(t, header["echo-authority"], 1)
	assert.Equal(t, []string{"three"}, trailer["echo-trailing"])
}

func TestGRPCStatus(t *testing.T) {
	// Nothing but trailers, in one frame: the more often, the better.
	c := grpcHop(t, &greeter{})
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for range 5 {
			var header, trailer metadata.MD
			_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{
				ResponseStatus: &pb.EchoStatus{Code: int32(code), Message: "wörd\n100%"},
			}, grpc.Header(&header), grpc.Trailer(&trailer))
			st := status.Convert(err)
			require.Equal(t, code, st.Code(), "%v", err)
			assert.Equal(t, "wörd\n100%", st.Message())
			require.Len(t, st.Details(), 1)
			assert.True(t, proto.Equal(&pb.EchoStatus{Code: 7, Message: "detail"}, st.Details()[0].(proto.Message)))
			assert.Equal(t, []string{"the error"}, trailer["with"])
			assert.NotContains(t, trailer, "content-length")
			assert.NotContains(t, header, "content-length")
		}
	}
	_, err := c.UnimplementedCall(t.Context(), &pb.Empty{})
	assert.Equal(t, codes.Unimplemented, status.Code(err))
}

func TestGRPCServerStreaming(t *testing.T) {
	c := grpcHop(t, &greeter{})
	var want []*pb.ResponseParameters
	for _, size := range []int32{1, 0, 31415, 300_000, 7} {
		want = append(want, &pb.ResponseParameters{Size: size})
	}
	s, err := c.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{ResponseParameters: want})
	require.NoError(t, err)
	for _, p := range want {
		rsp, err := s.Recv()
		require.NoError(t, err)
		assert.Len(t, rsp.GetPayload().GetBody(), int(p.GetSize()))
	}
	_, err = s.Recv()
	assert.ErrorIs(t, err, io.EOF)
}

func TestGRPCClientStreaming(t *testing.T) {
	c := grpcHop(t, &greeter{})
	s, err := c.StreamingInputCall(t.Context())
	require.NoError(t, err)
	sum := 0
	for _, size := range []int{27182, 8, 0, 300_000} {
		sum += size
		require.NoError(t, s.Send(&pb.StreamingInputCallRequest{Payload: payload(size)}))
	}
	rsp, err := s.CloseAndRecv()
	require.NoError(t, err)
	assert.EqualValues(t, sum, rsp.GetAggregatedPayloadSize())
}

func TestGRPCBidiStreaming(t *testing.T) {
	c := grpcHop(t, &greeter{})
	s, err := c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for i := range 10 {
		word := &pb.Payload{Body: fmt.Appendf(nil, "word %d", i)}
		require.NoError(t, s.Send(&pb.StreamingOutputCallRequest{Payload: word}))
		rsp, err := s.Recv()
		require.NoError(t, err)
		assert.Equal(t, string(word.GetBody()), string(rsp.GetPayload().GetBody()))
	}
	require.NoError(t, s.Send(&pb.StreamingOutputCallRequest{ResponseStatus: &pb.EchoStatus{Code: 9, Message: "enough"}}))
	_, err = s.Recv()
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.Equal(t, "enough", status.Convert(err).Message())

	s, err = c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	assert.ErrorIs(t, err, io.EOF)
}

func TestGRPCDeadlineAndCancel(t *testing.T) {
	t.Parallel()
	// endless calls what ends with ctx alone, and reports whether it came that far.
	endless := func(ctx context.Context, t *testing.T, g *greeter, c pb.TestServiceClient, want codes.Code) bool {
		_, err := c.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: -1})
		require.Equal(t, want, status.Code(err), "%v", err)
		select {
		case <-g.arrived:
		default:
			return false
		}
		select {
		case <-g.gone:
		case <-time.After(patience):
			require.Fail(t, "it is not cancelled")
		}
		return true
	}
	for name, calls := range map[string]func(t *testing.T, g *greeter, c pb.TestServiceClient){
		"deadline": func(t *testing.T, g *greeter, c pb.TestServiceClient) {
			for d := time.Second; ; d *= 4 { // until it is enough to come there
				require.Less(t, d, patience)
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				if endless(ctx, t, g, c, codes.DeadlineExceeded) {
					return
				}
			}
		},
		"cancel": func(t *testing.T, g *greeter, c pb.TestServiceClient) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-g.arrived
				cancel()
			}()
			require.True(t, endless(ctx, t, g, c, codes.Canceled))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := &greeter{arrived: make(chan struct{}), gone: make(chan struct{})}
			c := grpcHop(t, g)
			_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}) // the connections are there
			require.NoError(t, err)
			calls(t, g, c)
		})
	}
}

func TestGRPCProxyErrors(t *testing.T) {
	for name, tt := range statuses() {
		t.Run(name, func(t *testing.T) {
			// grpc-go may return io.EOF if the stream is reset before the message is written.
			svc := serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
				pipe(io.Discard, r.Body)
				return nil, tt.err
			})
			c := grpcClient(t, serve(t, Handler(svc, withErrorHeaders())))
			_, err := c.EmptyCall(t.Context(), &pb.Empty{})
			assert.Equal(t, codes.Code(tt.code), status.Code(err), "%v", err)
			if _, resets := asReset(tt.err); !resets {
				assert.Equal(t, tt.err.Error(), status.Convert(err).Message())
			}
		})
	}
}

func TestGRPCCanceledByEndpoint(t *testing.T) {
	// An endpoint that cancels a stream has its reasons, or is late.
	for name, tt := range map[string]struct {
		timeout string
		want    int
	}{
		"late": {"1n", grpcDeadlineExceeded}, "in time": {"1H", grpcCanceled}, "no deadline": {"", grpcCanceled},
	} {
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprint(name, begun), func(t *testing.T) {
				up := h2Server(t, 10, func(_ int, c *rawH2) {
					s := c.request()
					if begun {
						c.frame(frameHeaders, flagEndHeader, s, headerOK)
					}
					c.reset(s, message.CodeCancel)
				})
				proxy := serve(t, Handler(endpoint(t, up)))
				req := request(t, http.MethodPost, "http://"+proxy+"/", "")
				req.Header.Set("Content-Type", "application/grpc")
				if tt.timeout != "" {
					req.Header.Set("Grpc-Timeout", tt.timeout)
				}
				rsp, err := client(t, true).Do(req)
				if err == nil && tt.want == grpcCanceled {
					_, err = io.ReadAll(rsp.Body)
				}
				if tt.want == grpcCanceled {
					require.ErrorContains(t, err, "CANCEL")
					return
				}
				require.NoError(t, err)
				read(t, rsp)
				got := rsp.Header.Get("Grpc-Status") + rsp.Trailer.Get("Grpc-Status")
				assert.Equal(t, fmt.Sprint(tt.want), got)
			})
		}
	}
}

func TestGRPCResponseAborted(t *testing.T) {
	// The upstream dies between two messages: the client gets a status.
	for name, tt := range map[string]struct {
		end  func(c *rawH2, stream uint32)
		want codes.Code
	}{
		"the end":       {func(c *rawH2, _ uint32) { c.Close() }, codes.Unavailable},
		"reset":         {func(c *rawH2, s uint32) { c.reset(s, 0x2) }, codes.Internal},
		"cancelled":     {func(c *rawH2, s uint32) { c.reset(s, message.CodeCancel) }, codes.Canceled},
		"enough of you": {func(c *rawH2, s uint32) { c.reset(s, message.CodeEnhanceYourCalm) }, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			received := make(chan struct{})
			up := h2Server(t, 10, func(_ int, c *rawH2) {
				s := c.request()
				// :status 200, content-type: application/grpc (literal, indexed name 31)
				c.frame(frameHeaders, flagEndHeader, s, append([]byte{0x88, 0x0f, 0x10, 16}, "application/grpc"...))
				c.frame(frameData, 0, s, []byte{0, 0, 0, 0, 0}) // an empty message
				<-received
				tt.end(c, s)
			})
			stack := NewStack().Limit(1).Service(endpoint(t, up))
			c := grpcClient(t, serve(t, Handler(stack, withErrorHeaders())))
			s, err := c.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
			require.NoError(t, err)
			_, err = s.Recv()
			require.NoError(t, err)
			close(received)
			_, err = s.Recv()
			assert.Equal(t, tt.want, status.Code(err), "%v", err)
			if name == "the end" {
				assert.Contains(t, status.Convert(err).Message(), "broke off")
			}
		})
	}
}

func TestGRPCStack(t *testing.T) {
	// Every layer that looks at responses, and none of them in the way.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	stack := NewStack().Timeout(time.Minute).Queue(10, patience).Limit(1).
		With("again", func(next Service) Service { return next }).
		Service(endpoint(t, l.Addr().String(), WithHTTP2()))
	c := grpcClient(t, serve(t, Handler(stack)))
	for range 20 {
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: 10})
		require.NoError(t, err)
		_, err = c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Code: 2, Message: "no"}})
		require.Equal(t, codes.Unknown, status.Code(err), "%v", err)
	}
	assert.NotEmpty(t, layer.Describe(stack).String())
}
