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

// The whole of it over TCP, as a program would use it.
func TestLoopback(t *testing.T) {
	var addrs []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := &server{addr: l.Addr().String()}
		g := grpc.NewServer(NewServer(NewStack().Limit(100).Layer()).ServerOptions()...)
		pb.RegisterTestServiceServer(g, s)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = g.Serve(l)
		}()
		t.Cleanup(func() {
			g.Stop()
			<-done
		})
		addrs = append(addrs, s.addr)
	}
	cc, err := grpc.NewClient(name+":///web", append(DialOptions(name, newSource(replace(addrs...)),
		Calls(NewStack().Timeout(time.Minute).Layer()),
		EndpointLayer(NewEndpointStack().Limit(10).Layer()),
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
