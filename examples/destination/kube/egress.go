package kube

import (
	"net/netip"
	"slices"

	apimeta "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"k8s.io/client-go/tools/cache"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// egressNetwork is the spec of an EgressNetwork.
type egressNetwork struct {
	TrafficPolicy string    `json:"trafficPolicy"` // Allow or Deny; applies to traffic that no route matches
	Networks      []network `json:"networks"`      // empty means all addresses outside the cluster
}

// egress returns the policy for traffic to an address that belongs to no Service or pod. The
// EgressNetwork that covers the address decides, as clients in the given namespace see it. If
// there is none, traffic that leaves the cluster is forwarded. egress returns nil for an address
// inside the cluster.
func (l *lookup) egress(addr netip.AddrPort, clients string) *outbound.OutboundPolicy {
	if e := l.egressNetwork(addr.Addr(), clients); e != nil {
		return l.egressPolicy(e, addr, clients)
	}
	if slices.ContainsFunc(l.clusterNetworks(), func(n netip.Prefix) bool { return n.Contains(addr.Addr()) }) {
		return nil
	}
	// There is no EgressNetwork, so the fallback has no object, but the same kind of policy as one.
	network := parent{kind: "EgressNetwork", host: addr.Addr().String()}
	msg := l.policy(network, addr.Port(), false, clients, object{"trafficPolicy": "Allow"}) // not opaque
	// In metrics, the fallback's traffic must not look like that of an EgressNetwork.
	eachMessage(msg.ProtoReflect(), func(m *apimeta.Metadata) { m.Kind = &apimeta.Metadata_Default{Default: "egress-fallback"} })
	return msg
}

// egressNetwork returns the EgressNetwork that covers addr for clients in a namespace, or nil.
// The clients' own namespace goes first: if it contains any EgressNetworks, those in the global
// EgressNamespace are ignored, even if none of the local ones covers addr. The smallest network
// wins, then the oldest object.
func (l *lookup) egressNetwork(addr netip.Addr, clients string) *resource[egressNetwork] {
	var all []*resource[egressNetwork]
	for _, namespace := range []string{clients, l.settings.EgressNamespace} {
		l.use(usesEgress, namespace, "")
		if all = list[resource[egressNetwork]](l.cluster, "EgressNetwork", cache.NamespaceIndex, namespace); len(all) > 0 {
			break
		}
	}
	var found *resource[egressNetwork]
	// longest is -1 as long as nothing covers the address.
	longest := -1
	for _, e := range all {
		if e.spec == nil {
			continue
		}
		// Only a longer prefix replaces found, so the oldest object wins among equal ones.
		if bits := l.matches(e.spec, addr); bits > longest {
			found = e
			longest = bits
		}
	}
	return found
}

// matches returns the length of the longest prefix in e that contains addr, or -1.
func (c *cluster) matches(e *egressNetwork, addr netip.Addr) int {
	longest := -1
	networks := e.Networks
	// Without networks, the EgressNetwork covers everything outside the cluster.
	if len(networks) == 0 {
		all := network{CIDR: "0.0.0.0/0"}
		if addr.Is6() {
			all.CIDR = "::/0"
		}
		for _, n := range c.clusterNetworks() {
			all.Except = append(all.Except, n.String())
		}
		networks = []network{all}
	}
	for _, n := range networks {
		prefix, err := parsePrefix(n.CIDR)
		// An invalid network covers nothing, and its status says so.
		if err != nil || !prefix.Contains(addr) || slices.ContainsFunc(n.Except, func(text string) bool {
			except, err := parsePrefix(text)
			return err == nil && except.Contains(addr)
		}) {
			continue
		}
		longest = max(longest, prefix.Bits())
	}
	return longest
}

// clusterNetworks returns the configured networks of the cluster, or linkerd's defaults.
func (c *cluster) clusterNetworks() []netip.Prefix {
	if len(c.settings.ClusterNetworks) > 0 {
		return c.settings.ClusterNetworks
	}
	return controller.DefaultClusterNetworks()
}

// parsePrefix parses a network in CIDR notation, or a single address.
func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// egressPolicy returns e's policy for traffic to addr. Requests that match none of its routes are
// forwarded or denied, depending on e's trafficPolicy.
func (l *lookup) egressPolicy(e *resource[egressNetwork], addr netip.AddrPort, clients string) *outbound.OutboundPolicy {
	p := parent{kind: "EgressNetwork", Name: kubeobject.NameOf(e), annotations: e.GetAnnotations(), host: addr.Addr().String()}
	msg := l.policy(p, addr.Port(), l.ports(p.annotations).has(addr.Port()), clients, object{"trafficPolicy": e.spec.TrafficPolicy})
	// The policy was built for a name after the address. Metrics should name the EgressNetwork itself.
	eachMessage(msg.ProtoReflect(), func(m *apimeta.Metadata) {
		if r := m.GetResource(); r.GetKind() == "EgressNetwork" {
			r.Namespace = p.Namespace
			r.Name = p.Name.Name
		}
	})
	return msg
}

// egressStatus returns e's condition Accepted. It is False if a network is invalid or overlaps
// the cluster's own networks, because traffic inside the cluster is not egress traffic.
func (c *cluster) egressStatus(e *resource[egressNetwork]) kubeobject.Status {
	// The condition is replaced if a network is invalid.
	accepted := []kubeobject.Condition{kubeobject.Is("Accepted", "")}
	s := kubeobject.Status{Kind: e.GetKind(), Object: kubeobject.NameOf(e), Conditions: accepted}
	for _, n := range e.spec.Networks {
		for _, text := range append([]string{n.CIDR}, n.Except...) {
			if _, err := parsePrefix(text); err != nil {
				s.Conditions[0] = kubeobject.IsNot("Accepted", "Invalid", "the network "+text+" is invalid")
				return s
			}
		}
		prefix, _ := parsePrefix(n.CIDR)
		// A network may overlap the cluster's if an exception covers the whole overlap.
		if slices.ContainsFunc(c.clusterNetworks(), func(cluster netip.Prefix) bool {
			return prefix.Overlaps(cluster) && !slices.ContainsFunc(n.Except, func(text string) bool {
				except, _ := parsePrefix(text)
				return except.Bits() <= cluster.Bits() && except.Overlaps(cluster)
			})
		}) {
			const overlap = "networks overlap with the networks of the cluster"
			s.Conditions[0] = kubeobject.IsNot("Accepted", "EgressReasonNetworkOverlap", overlap)
			return s
		}
	}
	return s
}
