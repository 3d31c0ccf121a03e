package kube

import (
	"strings"
	"testing"

	apimeta "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/destination/internal/policytest"
)

func egressTo(namespace, name, traffic, networks string) string {
	return "---\n{apiVersion: policy.linkerd.io/v1alpha1, kind: EgressNetwork, metadata: {name: " + name + ", namespace: " + namespace +
		"}, spec: {trafficPolicy: " + traffic + networks + "}}\n"
}

func withEgress(t *testing.T, text string) *cluster {
	t.Helper()
	return fill(t, documents(t, strings.TrimPrefix(strings.TrimSpace(text), "---\n"))...)
}

func egressPolicyOf(t *testing.T, c *cluster, namespace, host string, port uint16) *outbound.OutboundPolicy {
	t.Helper()
	d, _ := c.Destination(controller.Client{Namespace: namespace}, host, port, false)
	if d.Policy != nil {
		require.NoError(t, policytest.Outbound(d.Policy))
		require.NoError(t, controller.New(nil).Set(controller.Config{Destinations: map[string]controller.Destination{"192.0.2.1:80": d}}))
	}
	return d.Policy
}

// The EgressNetwork of the client's namespace with the smallest network applies, or else one of the
// namespace for all clients.
func TestEgressNetworkApplies(t *testing.T) {
	const small, large = ", networks: [{cidr: 192.0.2.0/24}]", ", networks: [{cidr: 192.0.0.0/16, except: [192.0.3.0/24]}]"
	global, mine := egressTo("linkerd-egress", "global", "Deny", ""), egressTo("shop", "mine", "Allow", large)
	for _, test := range []struct{ objects, client, host, want string }{
		{global, "shop", "192.0.2.1", "global"},
		{global, "shop", "2001:db8::1", "global"},
		{global, "shop", "10.1.2.3", ""}, // in the cluster
		{global + mine, "shop", "192.0.2.1", "mine"},
		{global + mine, "other", "192.0.2.1", "global"},
		{global + mine, "shop", "192.0.3.1", "egress-fallback"}, // an exception
		{global + mine, "shop", "203.0.113.1", "egress-fallback"},
		{mine + egressTo("shop", "near", "Deny", small), "shop", "192.0.2.1", "near"},
		{mine + egressTo("shop", "inside", "Deny", ", networks: [{cidr: 10.0.0.0/8}]"), "shop", "10.1.2.3", "inside"},
		{egressTo("shop", "wrong", "Deny", ", networks: [{cidr: ten}]"), "shop", "192.0.2.1", "egress-fallback"},
	} {
		p := egressPolicyOf(t, withEgress(t, test.objects), test.client, test.host, 443)
		m := p.GetMetadata()
		require.Equal(t, test.want, m.GetResource().GetName()+m.GetDefault(), test)
		if m.GetResource() != nil {
			require.Equal(t, uint32(443), m.GetResource().GetPort())
		}
	}
}

// The traffic policy of an EgressNetwork decides about requests without a route, in each protocol.
func TestEgressDefaults(t *testing.T) {
	route := func(version, kind string) string {
		return strings.NewReplacer("group: core, kind: Service, name: web, namespace: shop", "group: policy.linkerd.io, kind: EgressNetwork, name: out",
			"name: next, namespace: shop, port: 80", "group: policy.linkerd.io, kind: EgressNetwork, name: out").Replace(routeTo(version, kind, "shop", "r"))
	}
	for _, test := range []struct{ routes, kind, last string }{
		{"", "Detect_", "http-egress-"},
		{route(gatewayV1, "HTTPRoute"), "Detect_ gateway.networking.k8s.io/HTTPRoute/shop/r", "http-egress-"},
		{route(linkerdBeta, "HTTPRoute"), "Detect_ policy.linkerd.io/HTTPRoute/shop/r", "http-egress-"},
		{route(gatewayV1, "GRPCRoute"), "Grpc_ gateway.networking.k8s.io/GRPCRoute/shop/r", "grpc-egress-"},
		{route(gatewayAlpha, "TLSRoute"), "Tls_ gateway.networking.k8s.io/TLSRoute/shop/r", "tls-egress-"},
		{route(gatewayAlpha, "TCPRoute"), "Opaque_ gateway.networking.k8s.io/TCPRoute/shop/r", ""},
	} {
		for traffic, suffix := range map[string]string{"Allow": "allow", "Deny": "deny"} {
			c := withEgress(t, egressTo("shop", "out", traffic, "")+test.routes)
			p := egressPolicyOf(t, c, "shop", "192.0.2.1", 8080)
			require.Equal(t, test.kind, routesIn(t, p))
			var last string
			filters := 0
			eachMessage(p.ProtoReflect(), func(m *apimeta.Metadata) {
				if strings.HasPrefix(m.GetDefault(), test.last) {
					last = m.GetDefault()
				}
			})
			for _, visit := range []func(){
				func() { eachMessage(p.ProtoReflect(), func(*outbound.HttpRoute_Filter) { filters++ }) },
				func() { eachMessage(p.ProtoReflect(), func(*outbound.GrpcRoute_Filter) { filters++ }) },
				func() { eachMessage(p.ProtoReflect(), func(*outbound.TlsRoute_Filter) { filters++ }) },
			} {
				visit()
			}
			if test.last != "" {
				require.Equal(t, test.last+suffix, last)
				require.Equal(t, traffic == "Deny", filters > 0)
			}
			eachMessage(p.ProtoReflect(), func(b *outbound.Backend) {
				require.Equal(t, uint32(8080), b.GetForward().GetAddr().GetPort())
				require.True(t, proto.Equal(p.GetMetadata(), b.GetMetadata()), "a backend of the EgressNetwork itself")
			})
			if test.routes == "" {
				continue
			}
			for _, kind := range []string{"HTTPRoute", linkerdHTTPRoute, "GRPCRoute", "TLSRoute", "TCPRoute"} {
				for _, item := range c.stores[kind].List() {
					s, _ := c.status(item)
					for _, condition := range s.Parents[0].Conditions {
						require.Equal(t, "True", condition.Status, condition)
					}
				}
			}
		}
	}
	opaque := withEgress(t, strings.Replace(egressTo("shop", "out", "Deny", ""), "namespace: shop", "namespace: shop, annotations: {config.linkerd.io/opaque-ports: \"25\"}", 1))
	p := egressPolicyOf(t, opaque, "shop", "192.0.2.1", 25)
	require.NotNil(t, p.GetProtocol().GetOpaque().GetRoutes()[0].GetRules()[0].GetFilters()[0].GetForbidden())
}

// The status of an EgressNetwork names what is wrong with its networks.
func TestEgressStatus(t *testing.T) {
	for networks, want := range map[string]string{
		"":                                   "True",
		", networks: [{cidr: 192.0.2.0/24}]": "True",
		", networks: [{cidr: 192.0.2.7}]":    "True",
		", networks: [{cidr: ten}]":          "the network ten is invalid",
		", networks: [{cidr: 192.0.0.0/4, except: [x]}]":        "the network x is invalid",
		", networks: [{cidr: 10.1.0.0/16}]":                     "networks overlap with the networks of the cluster",
		", networks: [{cidr: 8.0.0.0/6}]":                       "networks overlap with the networks of the cluster",
		", networks: [{cidr: 8.0.0.0/6, except: [10.0.0.0/8]}]": "True",
	} {
		c := withEgress(t, egressTo("shop", "out", "Deny", networks))
		s, from := c.status(c.stores["EgressNetwork"].List()[0])
		require.NotNil(t, from)
		got := s.Conditions[0].Message
		if s.Conditions[0].Status == "True" {
			got = "True"
		}
		require.Equal(t, want, got, networks)
	}
}
