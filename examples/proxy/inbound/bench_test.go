package inbound

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// BenchmarkPolicy measures what the policy costs per request, without the application and the
// layers of its port.
func BenchmarkPolicy(b *testing.B) {
	m := &meta.Metadata{Kind: &meta.Metadata_Default{Default: "r"}}
	routes := func(n int, filters ...*pb.HttpRoute_Filter) *pb.Server {
		var list []*pb.HttpRoute
		for i := range n {
			list = append(list, &pb.HttpRoute{Metadata: m, Rules: []*pb.HttpRoute_Rule{{
				Matches: []*http_route.HttpRouteMatch{{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: fmt.Sprint("/r", i)}}}},
				Filters: filters,
			}}})
		}
		return &pb.Server{
			Labels:         map[string]string{"name": "web"},
			Authorizations: []*pb.Authz{authz(identities([]string{"other.test", "client.test"}))},
			Protocol:       &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Http1_{Http1: &pb.ProxyProtocol_Http1{Routes: list}}},
		}
	}
	header := &pb.HttpRoute_Filter{Kind: &pb.HttpRoute_Filter_RequestHeaderModifier{
		RequestHeaderModifier: &http_route.RequestHeaderModifier{Remove: []string{"x"}},
	}}
	limited := routes(1)
	limited.GetProtocol().GetHttp1().LocalRateLimit = &pb.HttpLocalRateLimit{
		Total: &pb.HttpLocalRateLimit_Limit{RequestsPerSecond: 1 << 30}, Identity: &pb.HttpLocalRateLimit_Limit{RequestsPerSecond: 1 << 30},
	}
	for _, bb := range []struct {
		name string
		msg  *pb.Server // nil: the default policy
	}{
		{"default", nil}, {"authorization", routes(0)}, {"routes=10", routes(10)}, {"routes=1000", routes(1000)},
		{"rate limit", limited}, {"filter", routes(1, header)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			in := newInbound(Config{
				Inbound: settings.Inbound{DefaultPolicy: settings.AllUnauthenticated}, Meters: meters.New(meters.Config{}), Taps: new(tap.Registry),
				Controller: unconnected{},
			})
			in.logicals = newCache(b.Context(), func(context.Context, logicalKey) httplayer.Service { return nil }, 1)
			in.policies = newPolicies(b.Context(), in)
			policy := in.policies.acquire(80)
			if bb.msg != nil {
				p, err := policyOf(bb.msg)
				require.NoError(b, err)
				policy.set(in.complete(b.Context(), p))
			}
			for _, route := range policy.current.Load().policies {
				for i := range route.permits {
					route.permits[i].service = application{}
				}
			}
			svc := requestPolicy{in.applyPolicy}
			bench := func(ctx context.Context, req *http.Request) {
				_, err := svc.Call(ctx, req)
				require.NoError(b, err)
				b.ReportAllocs()
				for b.Loop() {
					_, _ = svc.Call(ctx, req)
				}
			}
			inRequest(b, &client{addr: netip.MustParseAddr("10.0.0.2"), secure: true, id: "client.test", policy: policy}, bench)
		})
	}
}

// BenchmarkLogicalKey measures how long it takes to find the name under which a request is counted.
func BenchmarkLogicalKey(b *testing.B) {
	in := newInbound(Config{
		Control: settings.Control{ProfileSuffixes: settings.Suffixes{"svc.cluster.local"}}, Meters: meters.New(meters.Config{}),
		Controller: unconnected{},
	})
	inRequest(b, &client{}, func(_ context.Context, req *http.Request) {
		req.Header.Set(canonicalHeader, "web.ns.svc.cluster.local:80")
		key, err := in.logicalKey(req)
		require.NoError(b, err)
		require.Equal(b, "web.ns.svc.cluster.local:80", key.name)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = in.logicalKey(req)
		}
	})
}

// inRequest calls f with the context of a request from c.
func inRequest(b testing.TB, c *client, f func(context.Context, *http.Request)) {
	b.Helper()
	server := httplayer.NewServer(httplayer.FromHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { f(r.Context(), r) })))
	ours, theirs := net.Pipe()
	go func() { _, _ = theirs.Write([]byte("GET /r0/x HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")) }()
	go func() {
		buf := make([]byte, 1024)
		for {
			if _, err := theirs.Read(buf); err != nil {
				return
			}
		}
	}()
	conn := tcplayer.OverrideAddrs(ours, netip.MustParseAddrPort("10.0.0.2:1"), netip.MustParseAddrPort("10.0.0.1:80"))
	_, _ = server.Call(context.WithValue(b.Context(), clientKey{}, c), conn)
	require.NoError(b, theirs.Close())
}

type application struct{}

func (application) Ready(context.Context) error { return nil }

func (application) Call(context.Context, *http.Request) (*http.Response, error) { return answer, nil }

var answer = &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}

// unconnected is a connection without a controller.
type unconnected struct{ grpc.ClientConnInterface }
