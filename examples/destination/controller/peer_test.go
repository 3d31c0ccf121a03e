package controller

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/examples/destination/internal/policytest"
)

// patience is the maximum wait of a test.
const patience = 20 * time.Second

// served runs a controller on loopback and returns a client of it.
func served(t *testing.T, c *Controller, opts ...grpc.DialOption) pb.DestinationClient {
	t.Helper()
	return pb.NewDestinationClient(connected(t, c, opts...))
}

// connected runs a controller on loopback and returns a connection to it. The test fails if the
// connection receives a policy that linkerd2-proxy would reject.
func connected(t *testing.T, c *Controller, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(ctx, lis) }()
	opts = append(append(policytest.DialOptions(t), opts...), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, conn.Close())
		require.Empty(t, c.updates, "streams left after Serve returned")
		require.Empty(t, c.profiles, "streams left after Serve returned")
		require.Empty(t, c.policies, "streams left after Serve returned")
		require.Empty(t, c.servers, "streams left after Serve returned")
	})
	return conn
}

func get(t *testing.T, client pb.DestinationClient, path string) grpc.ServerStreamingClient[pb.Update] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := client.Get(ctx, &pb.GetDestination{Scheme: "k8s", Path: path, ContextToken: "ns:test"})
	require.NoError(t, err)
	return stream
}

func getProfile(t *testing.T, client pb.DestinationClient, path string) grpc.ServerStreamingClient[pb.DestinationProfile] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := client.GetProfile(ctx, &pb.GetDestination{Path: path})
	require.NoError(t, err)
	return stream
}

func recv[M any](t *testing.T, stream grpc.ServerStreamingClient[M]) *M {
	t.Helper()
	m, err := stream.Recv()
	require.NoError(t, err)
	return m
}

// ends reads a stream to its end and returns the status and how many messages
// came before it.
func ends[M any](t *testing.T, stream grpc.ServerStreamingClient[M]) (*status.Status, int) {
	t.Helper()
	for n := 0; ; n++ {
		_, err := stream.Recv()
		if err == nil {
			continue
		}
		require.NotEqual(t, codes.DeadlineExceeded, status.Code(err), "the stream did not end")
		return status.Convert(err), n
	}
}

func same(t *testing.T, want, got proto.Message) {
	t.Helper()
	require.True(t, proto.Equal(want, got), "want %v\ngot  %v", want, got)
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func endpointsAt(addrs ...string) []Endpoint {
	var eps []Endpoint
	for _, a := range addrs {
		eps = append(eps, Endpoint{Addr: addr(a)})
	}
	return eps
}

func one(name string, d Destination) Config {
	return Config{Destinations: map[string]Destination{name: d}}
}

func set(t *testing.T, c *Controller, cfg Config) {
	t.Helper()
	require.NoError(t, c.Set(cfg))
}

// tcp is written out here, and not taken from the code under test: 10.0.0.x in
// network order.
func tcp(lastByte, port uint32) *apinet.TcpAddress {
	return &apinet.TcpAddress{Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{Ipv4: 10<<24 | lastByte}}, Port: port}
}

func plain(lastByte, port uint32) *pb.WeightedAddr {
	return &pb.WeightedAddr{Addr: tcp(lastByte, port), Weight: 10000}
}

func addition(labels map[string]string, addrs ...*pb.WeightedAddr) *pb.Update {
	return &pb.Update{Update: &pb.Update_Add{Add: &pb.WeightedAddrSet{Addrs: addrs, MetricLabels: labels}}}
}

func removal(addrs ...*apinet.TcpAddress) *pb.Update {
	return &pb.Update{Update: &pb.Update_Remove{Remove: &pb.AddrSet{Addrs: addrs}}}
}

func none(exists bool) *pb.Update {
	return &pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{Exists: exists}}}
}
