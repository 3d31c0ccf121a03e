package kube

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/destination/internal/policytest"
)

// The endpoints of an ExternalWorkload have its identity. Its ports have the policies of the Servers
// that select it.
func TestExternalWorkload(t *testing.T) {
	c := fill(t, documents(t, `{apiVersion: v1, kind: Service, metadata: {name: vm, namespace: shop}, spec: {ports: [{port: 80}, {name: db, port: 5432}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: vm, namespace: shop, labels: {kubernetes.io/service-name: vm}}, addressType: IPv4,
 ports: [{name: "", port: 8080}, {name: db, port: 5432}], endpoints: [{addresses: [192.0.2.9], zone: z, targetRef: {kind: ExternalWorkload, name: vm-1}},
 {addresses: [192.0.2.10], targetRef: {kind: ExternalWorkload, name: gone}}]}
---
{apiVersion: workload.linkerd.io/v1beta1, kind: ExternalWorkload, metadata: {name: vm-1, namespace: shop, labels: {app: vm}}, spec: {
 meshTLS: {identity: "spiffe://root/vm-1", serverName: vm-1.test}, ports: [{name: linkerd-proxy, port: 4999}, {name: http, port: 8080}],
 workloadIPs: [{ip: 192.0.2.9}, {ip: none}]}}
---
{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: vm, namespace: shop}, spec: {
 port: http, externalWorkloadSelector: {matchLabels: {app: vm}}, proxyProtocol: HTTP/1}}
---
{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: pods, namespace: shop}, spec: {port: 9090, podSelector: {}}}`)...)
	d, uses := c.Destination(controller.Client{}, "vm.shop.svc.cluster.local", 80, true)
	require.Contains(t, uses, controller.Object{Kind: usesExternal, Namespace: "shop", Name: "vm-1"})
	require.NoError(t, controller.New(nil).Set(controller.Config{Destinations: map[string]controller.Destination{"vm.test:80": d}}))
	require.Len(t, d.Endpoints, 2)
	vm := d.Endpoints[0]
	require.Equal(t, "spiffe://root/vm-1", vm.Identity)
	require.Equal(t, "vm-1.test", vm.ServerName)
	require.Equal(t, controller.H2, vm.Protocol)
	require.Equal(t, map[string]string{"external_workload": "vm-1", "zone": "z"}, vm.Labels)
	require.Empty(t, d.Endpoints[1].Identity)

	d, _ = c.Destination(controller.Client{}, "vm.shop.svc.cluster.local", 5432, true)
	require.Equal(t, controller.Opaque, d.Endpoints[0].Protocol)
	require.Equal(t, uint16(4999), d.Endpoints[0].InboundPort)

	d, _ = c.Destination(controller.Client{}, "192.0.2.9", 8080, false)
	require.Equal(t, "spiffe://root/vm-1", d.Profile.Endpoint.Identity)
	require.Equal(t, "shop", d.Profile.Endpoint.Labels["namespace"])
	require.Nil(t, d.Policy)

	for port, want := range map[uint16]string{8080: "vm", 9090: "all-unauthenticated"} {
		s, _ := c.Server(`{"ns":"shop","external_workload":"vm-1"}`, port)
		require.NoError(t, policytest.Inbound(s))
		require.Equal(t, want, s.GetLabels()["name"])
	}
	s, uses := c.Server(`{"ns":"shop","external_workload":"gone"}`, 8080)
	require.Equal(t, "all-unauthenticated", s.GetLabels()["name"])
	require.Equal(t, []controller.Object{{Kind: usesExternal, Namespace: "shop", Name: "gone"}}, uses)
}
