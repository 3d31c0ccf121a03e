package sidecar_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/tap/match"
)

// pods is a controller that only knows pods by their addresses, like linkerd's. An address's
// profile contains one endpoint, so there is nothing to balance.
type pods struct {
	destination.UnimplementedDestinationServer
	updates chan *destination.DestinationProfile
}

func (p *pods) Get(*destination.GetDestination, grpc.ServerStreamingServer[destination.Update]) error {
	return status.Error(codes.InvalidArgument, "a pod is no service")
}

func (p *pods) GetProfile(_ *destination.GetDestination, out grpc.ServerStreamingServer[destination.DestinationProfile]) error {
	for {
		select {
		case m := <-p.updates:
			if err := out.Send(m); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func (p *pods) serve(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	destination.RegisterDestinationServer(srv, p)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		require.NoError(t, <-done)
	})
	return l.Addr().String()
}

func podAt(addr, name string) *destination.DestinationProfile {
	addrPort := netip.MustParseAddrPort(addr)
	ip := addrPort.Addr().As4()
	v4 := uint32(ip[0])<<24 | uint32(ip[1])<<16 | uint32(ip[2])<<8 | uint32(ip[3])
	return &destination.DestinationProfile{Endpoint: &destination.WeightedAddr{
		Addr: &apinet.TcpAddress{
			Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{Ipv4: v4}}, Port: uint32(addrPort.Port()),
		},
		MetricLabels: map[string]string{"pod": name},
	}}
}

// The client requests a pod's address. The profile contains the endpoint, so the request is sent
// there without a balancer, with its labels.
func TestProfileWithEndpointForwards(t *testing.T) {
	ctl := &pods{updates: make(chan *destination.DestinationProfile, 1)}
	tn := newTestProxy(t, ctl.serve(t), func(c *sidecar.Config) {
		c.Control.ProfileNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	})
	one, two := backend(t, "one"), backend(t, "two")
	ctl.updates <- podAt(one, "web-1")

	conn, err := grpc.NewClient("passthrough:///"+tn.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), soon) // a label that is not there would be waited for
	defer cancel()
	stream, err := pb.NewTapClient(conn).Observe(ctx, &pb.ObserveRequest{
		Limit: 1, Match: match.DestinationLabel("pod", "web-1"),
	})
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)

	c := tn.client(t)
	code, body := get(t, c, "http://10.1.2.3:8080/a")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "one 10.1.2.3:8080 /a ", body)
	lookups := 0
	for e, err := stream.Recv(); !errors.Is(err, io.EOF); e, err = stream.Recv() {
		require.NoError(t, err)
		assert.Equal(t, "web-1", e.GetDestinationMeta().GetLabels()["pod"])
		assert.EqualValues(t, netip.MustParseAddrPort(one).Port(), e.GetDestination().GetPort())
		lookups++
	}
	assert.Equal(t, 3, lookups)

	tn.metrics(t, func(t require.TestingT, metrics string) {
		assert.Contains(t, metrics, `request_total{authority="10.1.2.3:8080",direction="outbound",dst_pod="web-1",`)
		assert.NotRegexp(t, `outbound_http_balancer_endpoints{.*dst="10.1.2.3:8080"`, metrics)
	})

	ctl.updates <- podAt(two, "web-2")
	require.EventuallyWithT(t, func(now *assert.CollectT) {
		_, body := get(now, c, "http://10.1.2.3:8080/b")
		assert.Equal(now, "two 10.1.2.3:8080 /b ", body)
	}, soon, time.Millisecond)
}
