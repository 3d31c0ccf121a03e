package grpclayer

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gotower/gotower/layer"
)

// listen starts a server on the loopback.
func listen(t *testing.T, opts ...grpc.ServerOption) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{addr: l.Addr().String(), grpc: grpc.NewServer(opts...)}
	pb.RegisterTestServiceServer(s.grpc, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(func() {
		s.grpc.Stop()
		<-done
	})
	return s
}

// All parts together over TCP.
func TestLoopback(t *testing.T) {
	var addrs []string
	for range 2 {
		addrs = append(addrs, listen(t, NewServer(NewStack().Limit(100).Layer()).ServerOptions()...).addr)
	}
	cc, err := grpc.NewClient(name+":///web", append(DialOptions(name, newSource(replace(addrs...)),
		WithCallLayer(NewStack().Timeout(time.Minute).Layer()),
		WithEndpointLayer(NewEndpointStack().Limit(10).Layer()),
	), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	defer cc.Close()

	seen := make(map[string]int)
	for range 200 {
		who, err := call(t.Context(), cc)
		require.NoError(t, err)
		seen[who]++
	}
	assert.NotEmpty(t, seen)
	for _, run := range shapes {
		require.NoError(t, run(t.Context(), pb.NewTestServiceClient(cc)))
	}
	require.NoError(t, cc.Close())
	_, err = call(t.Context(), cc)
	require.ErrorIs(t, err, grpc.ErrClientConnClosing) //nolint:staticcheck // that is what it says
	require.NotErrorIs(t, err, layer.ErrNotReady)
}
