package grpclayer

import (
	"context"
	"net"
	"path/filepath"
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
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

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

// The balancer serves addresses that are no IP addresses: names, Unix sockets and those of a dialer.
func TestAddressesWithoutIP(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	onSocket, err := net.Listen("unix", socket)
	require.NoError(t, err)
	inMemory := bufconn.Listen(64 << 10)
	s := listen(t)
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	for _, l := range []net.Listener{onSocket, inMemory} {
		server := grpc.NewServer()
		pb.RegisterTestServiceServer(server, s)
		serving.Go(func() { _ = server.Serve(l) })
		t.Cleanup(server.Stop)
	}
	_, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	for _, target := range []string{"passthrough:///localhost:" + port, "unix:" + socket, "passthrough:///bufnet"} {
		opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
		if strings.HasSuffix(target, "bufnet") {
			opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inMemory.DialContext(ctx) }))
		}
		cc, err := grpc.NewClient(target, append(opts, grpc.WithDefaultServiceConfig(serviceConfig("", name)))...)
		require.NoError(t, err)
		for range 3 {
			_, err = call(t.Context(), cc)
			require.NoError(t, err, target)
		}
		require.NoError(t, cc.Close())
	}
	require.Equal(t, "[::%bufnet]:0", addrOf("bufnet").String())
	require.NotEqual(t, addrOf("a:80"), addrOf("b:80"))
}

// A call that a layer of the endpoints rejects has the reason and the code of that layer.
func TestEndpointLayerReason(t *testing.T) {
	for want, option := range map[string]Option{
		"rate: not ready: out of tokens": WithEndpointLayer(NewEndpointStack().Limit(10).RateLimit(0.001, 1).Layer()),
		"rate: not ready: out of ":       WithEndpointLayer(NewEndpointStack().RateLimit(0.001, 1).Layer()),
	} {
		cc, err := grpc.NewClient(name+":///web", append(DialOptions(name, newSource(replace(listen(t).addr, listen(t).addr)), option),
			grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		require.NoError(t, err)
		for range 2 {
			_, err = call(t.Context(), cc)
			require.NoError(t, err)
		}
		for range 3 {
			_, err = call(t.Context(), cc)
			require.Equal(t, codes.ResourceExhausted, status.Code(err), err)
			require.ErrorContains(t, err, want)
			require.ErrorIs(t, err, layer.ErrNotReady)
		}
		require.NoError(t, cc.Close())
	}
}
