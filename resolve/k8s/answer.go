package k8s

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/gotower/gotower/resolve"
)

// snapshot is the state of a Service at one time. It is immutable.
type snapshot struct {
	service *service         // nil if the Service does not exist
	slices  []*endpointSlice // sorted by name
}

// answer returns an update with the endpoints of the snapshot s at the port want. It also returns a
// text for each problem in s, such as an endpoint without an IP address.
func (o *options) answer(s snapshot, want portRef) (u resolve.Update, problems []string) {
	// The order of the checks is from the Service to its parts: without a Service or port, the slices do not matter.
	if s.service == nil {
		return resolve.Update{Kind: resolve.DoesNotExist}, nil
	}
	if s.service.external != "" {
		return resolve.Update{Kind: resolve.Empty}, []string{fmt.Sprintf(
			"the Service is of type ExternalName and has no endpoints: resolve %s itself, by DNS", s.service.external)}
	}
	port, reason := s.service.choose(want)
	if reason != "" {
		return resolve.Update{Kind: resolve.DoesNotExist}, []string{reason}
	}
	// Problems do not prevent an answer: the endpoints that can be read are used.
	for _, slice := range s.slices {
		if slice.kind == discoveryv1.AddressTypeFQDN {
			problems = append(problems, fmt.Sprintf("EndpointSlice %s is ignored: its addressType is FQDN, "+
				"use IP addresses", slice.name))
		}
		for _, text := range slice.unread {
			problems = append(problems, fmt.Sprintf("EndpointSlice %s: the endpoint %q is ignored: not an IP address",
				slice.name, text))
		}
	}
	endpoints := o.endpoints(s, port)
	if len(endpoints) == 0 {
		return resolve.Update{Kind: resolve.Empty}, problems
	}
	return resolve.Update{Kind: resolve.Replace, Endpoints: endpoints}, problems
}

// endpoints returns the ready endpoints from the Service's first address family that has any. If
// neither family has any, it returns the terminating endpoints that still serve.
func (o *options) endpoints(s snapshot, port choice) []resolve.Endpoint {
	families := s.service.familiesInOrder()
	for _, f := range families {
		found := collect(s.slices, f, port, func(b *backend) bool { return b.ready })
		// Families are not mixed, so that a dual-stack Pod does not count twice.
		if len(found) > 0 {
			o.preferNear(found)
			return endpointsOf(found)
		}
	}
	// Terminating endpoints that still serve are better than none.
	for _, f := range families {
		found := collect(s.slices, f, port, func(b *backend) bool { return b.draining })
		if len(found) > 0 {
			return endpointsOf(found)
		}
	}
	return nil
}

// familiesInOrder returns IPv4 and IPv6, in the order that the Service specifies. Without
// families in the Service, IPv4 comes first.
func (s *service) familiesInOrder() []corev1.IPFamily {
	if len(s.families) > 0 && s.families[0] == corev1.IPv6Protocol {
		return []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	}
	return []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}

// candidate is an endpoint with the zones in its topology hints.
type candidate struct {
	resolve.Endpoint
	zones []string
}

// collect returns the backends of the given address family. It skips slices without the port want,
// and backends for which include returns false. An address in two slices is returned once.
func collect(
	objects []*endpointSlice, family corev1.IPFamily, want choice, include func(*backend) bool,
) []candidate {
	var list []candidate
	// While Kubernetes moves an endpoint to another slice, both may list it.
	addrs := make(map[netip.AddrPort]bool)
	for _, s := range objects {
		port, ok := s.port(want)
		// A kind, such as IPv4, is also the name of its family. Slices of the kind FQDN never match.
		if !ok || string(s.kind) != string(family) {
			continue
		}
		for i := range s.backends {
			b := &s.backends[i]
			addr := netip.AddrPortFrom(b.addr, port.number)
			if !include(b) || addrs[addr] {
				continue
			}
			addrs[addr] = true
			id := resolve.ID{Addr: addr, Protocol: port.protocol}
			list = append(list, candidate{resolve.Endpoint{ID: id, Labels: b.labels, Locality: b.labels["zone"]}, b.zones})
		}
	}
	return list
}

// preferNear prefers the candidates with a hint for the caller's zone: it sets the priority of all
// others to 1, so that they are used only if too few of the preferred ones are healthy. It changes
// nothing if the caller's zone is unknown, if a candidate carries no hints, or if none carries a hint
// for the zone. These conditions are those of kube-proxy (pkg/proxy/topology.go), which never uses
// the others.
func (o *options) preferNear(list []candidate) {
	isNear := func(c candidate) bool { return slices.Contains(c.zones, o.zone) }
	withoutHints := func(c candidate) bool { return len(c.zones) == 0 }
	if o.zone == "" || slices.ContainsFunc(list, withoutHints) || !slices.ContainsFunc(list, isNear) {
		return
	}
	for i := range list {
		if !isNear(list[i]) {
			list[i].Priority = 1
		}
	}
}

// endpointsOf returns the endpoints of the candidates, sorted by address, so that equal snapshots give
// equal updates.
func endpointsOf(list []candidate) []resolve.Endpoint {
	endpoints := make([]resolve.Endpoint, 0, len(list))
	for _, c := range list {
		endpoints = append(endpoints, c.Endpoint)
	}
	slices.SortFunc(endpoints, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return endpoints
}
