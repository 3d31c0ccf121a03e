package inbound

import (
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

// httpRule returns a port's policy with a route that has the given rule.
func httpRule(rule *pb.HttpRoute_Rule) (*serverPolicy, error) {
	metadata := &meta.Metadata{Kind: &meta.Metadata_Default{Default: "r"}}
	return policyOf(&pb.Server{Labels: map[string]string{"name": "x"}, Protocol: &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Http1_{
		Http1: &pb.ProxyProtocol_Http1{Routes: []*pb.HttpRoute{{Metadata: metadata, Rules: []*pb.HttpRoute_Rule{rule}}}},
	}}})
}

func injector(status uint32, message string, ratio *http_route.Ratio) *pb.HttpRoute_Filter {
	return &pb.HttpRoute_Filter{Kind: &pb.HttpRoute_Filter_FailureInjector{FailureInjector: &http_route.HttpFailureInjector{
		Status: status, Message: message, Ratio: ratio,
	}}}
}

// Each failure injector applies to its share of the requests that the previous ones leave.
func TestFailureInjectors(t *testing.T) {
	p, err := httpRule(&pb.HttpRoute_Rule{Filters: []*pb.HttpRoute_Filter{
		injector(503, "half", &http_route.Ratio{Numerator: 1, Denominator: 2}), injector(500, "rest", nil),
	}})
	require.NoError(t, err)
	require.Equal(t, []profiles.Fault{
		{Fraction: 0.5, Status: 503, Message: "half"}, {Fraction: 0.5, Status: 500, Message: "rest"},
	}, p.routes[0].Faults)
}

// Requests fail if their route has an invalid filter.
func TestInvalidFilters(t *testing.T) {
	for want, filter := range map[string]*pb.HttpRoute_Filter{
		"unknown filter":      {},
		"port 65616 is above": {Kind: &pb.HttpRoute_Filter_Redirect{Redirect: &http_route.RequestRedirect{Port: 1<<16 + 80}}},
		"ratio 1/0 is not":    injector(500, "", &http_route.Ratio{Numerator: 1}),
		"ratio 2/1 is not":    injector(500, "", &http_route.Ratio{Numerator: 2, Denominator: 1}),
	} {
		p, err := httpRule(&pb.HttpRoute_Rule{Filters: []*pb.HttpRoute_Filter{filter}})
		require.NoError(t, err, want)
		require.ErrorContains(t, p.policies[p.routes[0].Name].invalid, want)
	}
}

// The path prefix "/" means all requests, so that no router is needed.
func TestAllPaths(t *testing.T) {
	for _, prefix := range []string{"", "/"} {
		p, err := httpRule(&pb.HttpRoute_Rule{Matches: []*http_route.HttpRouteMatch{
			{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: prefix}}},
		}})
		require.NoError(t, err, prefix)
		require.NotNil(t, p.onlyRoute(), prefix)
	}
}
