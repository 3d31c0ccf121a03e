package kube

import (
	"fmt"
	"strings"
	"testing"

	apimeta "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/destination/internal/policytest"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

const twoServices = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}, {port: 81}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: next, namespace: shop}, spec: {ports: [{port: 80}]}}
`

// routeTo returns a route of a kind with the Service web as parent, and the Service next as backend.
func routeTo(version, kind, namespace, name string) string {
	return strings.NewReplacer("VERSION", version, "KIND", kind, "NAMESPACE", namespace, "NAME", name).Replace(
		"---\n" + `{apiVersion: VERSION, kind: KIND, metadata: {name: NAME, namespace: NAMESPACE}, spec: {
 parentRefs: [{group: core, kind: Service, name: web, namespace: shop}], rules: [{backendRefs: [{name: next, namespace: shop, port: 80}]}]}}` + "\n")
}

const (
	gatewayV1    = "gateway.networking.k8s.io/v1"
	gatewayAlpha = "gateway.networking.k8s.io/v1alpha2"
	linkerdBeta  = "policy.linkerd.io/v1beta3"
)

// routesIn returns "protocol group/kind/namespace/name ..." of the routes in p, without the default
// routes. p must be a policy that linkerd2-proxy accepts.
func routesIn(t *testing.T, p *outbound.OutboundPolicy) string {
	t.Helper()
	require.NoError(t, policytest.Outbound(p))
	text := strings.TrimPrefix(fmt.Sprintf("%T", p.GetProtocol().GetKind()), "*outbound.ProxyProtocol_")
	seen := make(map[string]bool)
	eachMessage(p.ProtoReflect(), func(m *apimeta.Metadata) {
		r := m.GetResource()
		if name := strings.Join([]string{r.GetGroup(), r.GetKind(), r.GetNamespace(), r.GetName()}, "/"); strings.HasSuffix(r.GetKind(), "Route") && !seen[name] {
			seen[name] = true
			text += " " + name
		}
	})
	return text
}

// A policy has the routes of each kind, of both groups, and of the namespace of the client.
func TestRoutesOfClients(t *testing.T) {
	const gateway, linkerd = "gateway.networking.k8s.io/", "policy.linkerd.io/"
	http, old := routeTo(gatewayV1, "HTTPRoute", "shop", "r"), routeTo(linkerdBeta, "HTTPRoute", "shop", "r")
	for _, test := range []struct{ routes, client, want string }{
		{http, "other", "Detect_ " + gateway + "HTTPRoute/shop/r"},
		{old, "other", "Detect_ " + linkerd + "HTTPRoute/shop/r"},
		{old + http, "other", "Detect_ " + gateway + "HTTPRoute/shop/r " + linkerd + "HTTPRoute/shop/r"},
		{routeTo(gatewayV1, "GRPCRoute", "shop", "r") + http, "other", "Grpc_ " + gateway + "GRPCRoute/shop/r"},
		{routeTo(gatewayAlpha, "TLSRoute", "shop", "r"), "other", "Tls_ " + gateway + "TLSRoute/shop/r"},
		{routeTo(gatewayAlpha, "TCPRoute", "shop", "r"), "other", "Opaque_ " + gateway + "TCPRoute/shop/r"},
		{routeTo(gatewayAlpha, "TCPRoute", "shop", "r") + routeTo(gatewayAlpha, "TCPRoute", "shop", "q"), "other", "Opaque_ " + gateway + "TCPRoute/shop/q"},
		{routeTo(gatewayAlpha, "TCPRoute", "shop", "r") + http, "other", "Detect_ " + gateway + "HTTPRoute/shop/r"},
		{routeTo(gatewayV1, "HTTPRoute", "near", "r") + http, "near", "Detect_ " + gateway + "HTTPRoute/near/r " + gateway + "HTTPRoute/shop/r"},
		{routeTo(gatewayV1, "HTTPRoute", "near", "r") + http, "far", "Detect_ " + gateway + "HTTPRoute/shop/r"},
		{routeTo(gatewayAlpha, "TLSRoute", "near", "r"), "near", "Tls_ " + gateway + "TLSRoute/near/r"},
	} {
		c := fill(t, documents(t, strings.TrimSpace(twoServices+test.routes))...)
		d, _ := c.Destination(controller.Client{Namespace: test.client}, "web.shop.svc.cluster.local", 80, false)
		require.Equal(t, test.want, routesIn(t, d.Policy), test.routes)
		backends := 0
		eachMessage(d.Policy.ProtoReflect(), func(b *outbound.Backend) {
			if b.GetBalancer().GetDiscovery().GetDst().GetPath() == "next.shop.svc.cluster.local:80" {
				backends++
			}
		})
		require.Positive(t, backends, test.routes)
	}
}

// Of the routes of an opaque port, only a TCPRoute counts.
func TestRoutesOfOpaquePort(t *testing.T) {
	services := strings.Replace(twoServices, "name: web,", `name: web, annotations: {config.linkerd.io/opaque-ports: "80"},`, 1)
	routes := routeTo(gatewayV1, "HTTPRoute", "shop", "r") + routeTo(gatewayAlpha, "TCPRoute", "shop", "r")
	c := fill(t, documents(t, strings.TrimSpace(services+routes))...)
	d, _ := c.Destination(controller.Client{}, "web.shop.svc.cluster.local", 80, false)
	require.Equal(t, "Opaque_ gateway.networking.k8s.io/TCPRoute/shop/r", routesIn(t, d.Policy))
}

// The condition Accepted of a route states its kind's place.
func TestAcceptedRoutes(t *testing.T) {
	http := routeTo(gatewayV1, "HTTPRoute", "shop", "r")
	twoRules := strings.Replace(routeTo(gatewayAlpha, "TCPRoute", "shop", "r"), "rules: [", "rules: [{}, ", 1)
	for _, test := range []struct{ routes, kind, want string }{
		{routeTo(gatewayAlpha, "TLSRoute", "near", "r"), "TLSRoute", "True Accepted "},
		{routeTo(linkerdBeta, "HTTPRoute", "shop", "r"), linkerdHTTPRoute, "True Accepted "},
		{http + routeTo(gatewayAlpha, "TLSRoute", "shop", "s"), "TLSRoute", "False RouteReasonConflicted the Service has the HTTPRoute shop/r, which takes precedence"},
		{routeTo(gatewayAlpha, "TCPRoute", "shop", "a") + routeTo(gatewayAlpha, "TCPRoute", "shop", "r"), "TCPRoute", "False RouteReasonConflicted the Service has the TCPRoute shop/a, which takes precedence"},
		{twoRules, "TCPRoute", "False UnsupportedValue spec.rules: want one rule in a TLSRoute or TCPRoute, not 2"},
		{strings.Replace(http, "name: web,", "name: gone,", 1), "HTTPRoute", "False NoMatchingParent no Service shop/gone"},
	} {
		c := fill(t, documents(t, strings.TrimSpace(twoServices+test.routes))...)
		items := c.stores[test.kind].List()
		got := ""
		for _, item := range items {
			s, from := c.status(item)
			require.NotNil(t, from)
			if accepted := s.Parents[0].Conditions[0]; len(items) == 1 || accepted.Status == "False" {
				got = accepted.Status + " " + accepted.Reason + " " + accepted.Message
			}
		}
		require.Equal(t, test.want, got, test.routes)
	}
}

// An HTTPRoute of linkerd's group applies to a Server, with the AuthorizationPolicies that name it.
func TestLinkerdRouteOfServer(t *testing.T) {
	c := fill(t, documents(t, `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}}
---
{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: s, namespace: shop}, spec: {port: 80, podSelector: {}, proxyProtocol: HTTP/1}}
---
{apiVersion: policy.linkerd.io/v1beta3, kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {
 parentRefs: [{group: policy.linkerd.io, kind: Server, name: s}], rules: [{matches: [{path: {value: /a}}]}]}}
---
{apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy, metadata: {name: a, namespace: shop}, spec: {
 targetRef: {group: policy.linkerd.io, kind: HTTPRoute, name: r}, requiredAuthenticationRefs: []}}`)...)
	s, _ := c.Server(`{"ns":"shop","pod":"p"}`, 80)
	require.NoError(t, policytest.Inbound(s))
	require.Len(t, s.GetProtocol().GetHttp1().GetRoutes(), 1)
	route := s.GetProtocol().GetHttp1().GetRoutes()[0]
	require.Equal(t, "policy.linkerd.io", route.GetMetadata().GetResource().GetGroup())
	require.Equal(t, "r", route.GetMetadata().GetResource().GetName())
	require.Len(t, route.GetAuthorizations(), 1)
	status, _ := c.status(c.stores[linkerdHTTPRoute].List()[0])
	require.Equal(t, kubeobject.Is("Accepted", ""), status.Parents[0].Conditions[0])
}

// The annotations of a Service configure the unified failure accrual and the load biaser.
func TestAnnotatedBalancer(t *testing.T) {
	c := fill(t, documents(t, `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, annotations: {
 balancer.linkerd.io/failure-accrual: unified, balancer.linkerd.io/failure-accrual-consecutive-max-failures: "3",
 balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests: "9",
 balancer.alpha.linkerd.io/penalize-failures: "true", balancer.alpha.linkerd.io/load-biaser-penalty: 7s}}, spec: {ports: [{port: 80}]}}`)...)
	d, _ := c.Destination(controller.Client{}, "web.shop.svc.cluster.local", 80, false)
	require.NoError(t, policytest.Outbound(d.Policy))
	http := d.Policy.GetProtocol().GetDetect().GetHttp1()
	unified := http.GetFailureAccrual().GetUnified()
	require.InDelta(t, 0.8, unified.GetSuccessRateThreshold(), 0)
	require.Equal(t, []uint32{3, 9}, []uint32{unified.GetMaxConsecutiveFailures(), unified.GetMinRequests()})
	load := http.GetRoutes()[0].GetRules()[0].GetBackends().GetFirstAvailable().GetBackends()[0].GetBackend().GetBalancer()
	require.Equal(t, int64(7), load.GetPenaltyPeakEwma().GetPenalty().GetSeconds())
}
