package inbound

import (
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/tap"
)

// A controller's message results in a usable policy or in an error.
func FuzzPolicyOf(f *testing.F) {
	seed := &pb.Server{Labels: map[string]string{"name": "x"}, Authorizations: []*pb.Authz{authz(identities([]string{"a"}, nil))}}
	for _, p := range []*pb.ProxyProtocol{
		{Kind: &pb.ProxyProtocol_Opaque_{Opaque: &pb.ProxyProtocol_Opaque{}}},
		{Kind: &pb.ProxyProtocol_Detect_{Detect: &pb.ProxyProtocol_Detect{HttpRoutes: []*pb.HttpRoute{{Rules: []*pb.HttpRoute_Rule{{}}}}}}},
		{Kind: &pb.ProxyProtocol_Grpc_{Grpc: &pb.ProxyProtocol_Grpc{Routes: []*pb.GrpcRoute{{Rules: []*pb.GrpcRoute_Rule{{}}}}}}},
	} {
		seed.Protocol = p
		data, err := proto.Marshal(seed)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		msg := new(pb.Server)
		if proto.Unmarshal(data, msg) != nil {
			return
		}
		p, err := policyOf(msg)
		if err != nil {
			return
		}
		in := newInbound(Config{
			Inbound: settings.Inbound{DefaultPolicy: settings.Deny}, Meters: meters.New(meters.Config{}), Taps: new(tap.Registry), Controller: unconnected{},
		})
		in.logicals = newCache(t.Context(), in.logical, 1)
		in.complete(t.Context(), p)
		for i := range p.authorizations {
			p.authorizations[i].permits(&client{secure: true, id: "a"})
		}
		if p.limit != nil {
			_, _ = p.limit.take("a")
		}
	})
}
