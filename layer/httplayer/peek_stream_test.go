package httplayer

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// talker is a server of streams that wait for their clients.
type talker struct {
	pb.UnimplementedTestServiceServer

	next  chan struct{} // a message more
	gone  chan struct{} // a client went away
	calls atomic.Int32
}

// StreamingOutputCall sends one message, and each further message on demand.
func (g *talker) StreamingOutputCall(r *pb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
	g.calls.Add(1)
	for i, p := range r.GetResponseParameters() {
		if i > 0 {
			select {
			case <-g.next:
			case <-s.Context().Done():
				g.gone <- struct{}{}
				return s.Context().Err()
			}
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: payload(int(p.GetSize()))}); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "late")
}

// FullDuplexCall sends a message at once, and then one for each received message.
func (g *talker) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	g.calls.Add(1)
	if err := s.SendHeader(metadata.Pairs("hello", "you")); err != nil {
		return err
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // the end
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
}

// peekingProxy is a proxy before it, which peeks into all responses.
func peekingProxy(t *testing.T, g *talker) pb.TestServiceClient {
	t.Helper()
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, g)
	t.Cleanup(srv.Stop)
	svc := NewStack().Retry(layer.RetryPolicy[*http.Request, *http.Response]{
		MaxAttempts: 3, Backoff: layer.Backoff{Min: 1, Max: 1},
		CanRetry: func(*http.Request) bool { return true },
	}).Service(endpoint(t, serve(t, srv), WithHTTP2()))
	return grpcClient(t, serve(t, Handler(svc)))
}

// A bidirectional stream makes progress: the client waits for the headers before it sends,
// and the server waits for the client after its first message.
func TestPeekBidiStream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g := &talker{next: make(chan struct{}), gone: make(chan struct{}, 1)}
	c := peekingProxy(t, g)

	duplex, err := c.FullDuplexCall(ctx)
	require.NoError(t, err)
	head, err := duplex.Header()
	require.NoError(t, err)
	assert.Equal(t, []string{"you"}, head["hello"])
	for i := range 5 {
		require.NoError(t, duplex.Send(&pb.StreamingOutputCallRequest{Payload: payload(i * 10_000)}))
		got, err := duplex.Recv()
		require.NoError(t, err)
		assert.Len(t, got.GetPayload().GetBody(), i*10_000)
	}
	require.NoError(t, duplex.CloseSend())
	_, err = duplex.Recv()
	require.ErrorIs(t, err, io.EOF)

	sizes := []int32{10, 40_000, 1, 3_000, 200_000, 7}
	request := &pb.StreamingOutputCallRequest{}
	for _, size := range sizes {
		request.ResponseParameters = append(request.ResponseParameters, &pb.ResponseParameters{Size: size})
	}
	stream, err := c.StreamingOutputCall(ctx, request)
	require.NoError(t, err)
	for i, size := range sizes {
		if i > 0 {
			g.next <- struct{}{}
		}
		got, err := stream.Recv()
		require.NoError(t, err)
		require.Len(t, got.GetPayload().GetBody(), int(size))
	}
	_, err = stream.Recv()
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.EqualValues(t, 2, g.calls.Load(), "what fails after a message was handed on is not tried again")

	going, leave := context.WithCancel(ctx)
	stream, err = c.StreamingOutputCall(going, request)
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	leave()
	<-g.gone
}
