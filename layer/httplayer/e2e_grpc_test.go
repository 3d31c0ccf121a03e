package httplayer

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// A gRPC server as a handler, behind a server's stack.
func TestE2EMiddlewareGRPC(t *testing.T) {
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	t.Cleanup(srv.Stop)
	outcomes := make(chan layer.Outcome[*http.Response], 10)
	c := grpcClient(t, serve(t, Middleware(watched(outcomes))(srv)))
	rsp, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: 100_000})
	require.NoError(t, err)
	assert.Len(t, rsp.GetPayload().GetBody(), 100_000)
	assert.Equal(t, layer.Success, Classify(<-outcomes))
	for code, class := range map[codes.Code]layer.Class{
		codes.Unavailable: layer.Retryable, codes.NotFound: layer.Success, codes.Internal: layer.Failure,
	} {
		_, err = c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Code: int32(code), Message: "no"}})
		assert.Equal(t, code, status.Code(err))
		assert.Equal(t, class, Classify(<-outcomes), code)
	}
	stream, err := c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{
			ResponseParameters: []*pb.ResponseParameters{{Size: int32(i)}}, Payload: payload(i),
		}))
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Error(t, err) // the end
	assert.Equal(t, layer.Success, Classify(<-outcomes))
}

// A rejection by a rate limit has the time of the next attempt for a gRPC client.
func TestE2EMiddlewareRejectsGRPC(t *testing.T) {
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	t.Cleanup(srv.Stop)
	c := grpcClient(t, serve(t, Middleware(NewStack().RateLimit(1e-3, 1).Layer())(srv)))
	_, err := c.EmptyCall(t.Context(), &pb.Empty{})
	require.NoError(t, err)
	var trailer metadata.MD
	_, err = c.EmptyCall(t.Context(), &pb.Empty{}, grpc.Trailer(&trailer))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Len(t, trailer["grpc-retry-pushback-ms"], 1)
}

// A proxy repeats a unary call if its policy permits this. The call has a trailers-only
// response, and its message was stored.
func TestE2ERetryGRPC(t *testing.T) {
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	t.Cleanup(srv.Stop)
	a := &visited{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "14")
		w.Header().Set("Grpc-Message", "away")
	}}
	leaf := spread{endpoint(t, serve(t, a)), endpoint(t, serve(t, srv))}
	may := policy{
		Backoff:  layer.Backoff{Min: time.Millisecond, Max: time.Millisecond},
		CanRetry: func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/UnaryCall") },
	}
	c := grpcClient(t, serve(t, Handler(NewStack().Retry(may).Service(leaf))))
	rsp, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: 1000, Payload: payload(1000)})
	require.NoError(t, err)
	assert.Len(t, rsp.GetPayload().GetBody(), 1000)
	assert.EqualValues(t, 1, a.n.Load())
	_, err = c.EmptyCall(t.Context(), &pb.Empty{})
	assert.Equal(t, codes.Unavailable, status.Code(err), "not that one")
	assert.Equal(t, "away", status.Convert(err).Message())
}
