package kube

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// A client gets the endpoints with a hint for its zone, if all endpoints have hints.
func TestTopologyHints(t *testing.T) {
	const objects = `{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/zone: c}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4,
 ports: [{name: "", port: 80}], endpoints: [{addresses: [10.0.0.1], zone: a, hints: {forZones: [{name: a}]}},
 {addresses: [10.0.0.2], zone: b, hints: {forZones: [{name: b}, {name: a}]}}, {addresses: [10.0.0.3], zone: b, hints: {forZones: [{name: b}]}}]}`
	without := strings.Replace(objects, ", hints: {forZones: [{name: b}]}", "", 1)
	for _, test := range []struct{ objects, node, want string }{
		{objects, "n1", "10.0.0.1:80=local 10.0.0.2:80=remote"},
		{objects, "n2", "10.0.0.1:80=remote 10.0.0.2:80=remote 10.0.0.3:80=remote"}, // no hint for the zone
		{objects, "n3", "10.0.0.1:80= 10.0.0.2:80= 10.0.0.3:80="},
		{objects, "gone", "10.0.0.1:80= 10.0.0.2:80= 10.0.0.3:80="},
		{objects, "", "10.0.0.1:80= 10.0.0.2:80= 10.0.0.3:80="},
		{without, "n1", "10.0.0.1:80=local 10.0.0.2:80=remote 10.0.0.3:80=remote"},
	} {
		c := fill(t, documents(t, test.objects)...)
		d, uses := c.Destination(controller.Client{Node: test.node}, "web.shop.svc.cluster.local", 80, true)
		var got []string
		for _, e := range d.Endpoints {
			got = append(got, e.Addr.String()+"="+e.Labels["zone_locality"])
		}
		require.Equal(t, test.want, strings.Join(got, " "), test.node)
		require.Equal(t, test.node != "", strings.Contains(jsonOf(t, uses), `"Node","Namespace":""`))
	}
}

// The opaque ports of a Namespace are those of its Services without the annotation.
func TestNamespaceOpaquePorts(t *testing.T) {
	const service = "\n---\n{apiVersion: v1, kind: Service, metadata: {name: NAME, namespace: shop, annotations: {ANNOTATION}}, spec: {ports: [{port: 7000}]}}"
	c := fill(t, documents(t, `{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: {config.linkerd.io/opaque-ports: "7000"}}}`+
		strings.NewReplacer("NAME", "a", "ANNOTATION", "").Replace(service)+
		strings.NewReplacer("NAME", "b", "ANNOTATION", `config.linkerd.io/opaque-ports: ""`).Replace(service))...)
	for name, want := range map[string]bool{"a": true, "b": false} {
		d, uses := c.Destination(controller.Client{}, name+".shop.svc.cluster.local", 7000, false)
		require.Equal(t, want, d.Profile.Opaque, name)
		require.Equal(t, want, strings.Contains(jsonOf(t, uses), `"Kind":"Namespace"`))
	}
}
