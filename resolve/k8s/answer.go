package k8s

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/gotower/gotower/resolve"
)

// snapshot is what is known of a Service at a moment. It does not change.
type snapshot struct {
	service *service         // nil if there is none
	slices  []*endpointSlice // in the order of their names
}

// answer is what a snapshot means for a port: an update that says all, and
// sentences about what in it is amiss.
func (o *options) answer(s snapshot, want portRef) (u resolve.Update, amiss []string) {
	if s.service == nil {
		return resolve.Update{Kind: resolve.DoesNotExist}, nil
	}
	if s.service.external != "" {
		return resolve.Update{Kind: resolve.Empty}, []string{fmt.Sprintf(
			"the Service is of type ExternalName and has no endpoints: resolve %s itself, by DNS", s.service.external)}
	}
	port, why := s.service.choose(want)
	if why != "" {
		return resolve.Update{Kind: resolve.DoesNotExist}, []string{why}
	}
	for _, slice := range s.slices {
		if slice.kind == discoveryv1.AddressTypeFQDN {
			amiss = append(amiss, fmt.Sprintf("EndpointSlice %s is passed over: its addressType is FQDN, "+
				"names to be looked up; give it IP addresses", slice.name))
		}
		for _, text := range slice.unread {
			amiss = append(amiss, fmt.Sprintf("EndpointSlice %s: the endpoint %q is passed over: not an IP address",
				slice.name, text))
		}
	}
	endpoints := o.endpoints(s, port)
	if len(endpoints) == 0 {
		return resolve.Update{Kind: resolve.Empty}, amiss
	}
	return resolve.Update{Kind: resolve.Replace, Endpoints: endpoints}, amiss
}

// endpoints returns the ready ones of the first family that has any; if none
// has, those that still serve while they terminate.
func (o *options) endpoints(s snapshot, port choice) []resolve.Endpoint {
	families := o.families(s.service)
	for _, f := range families {
		found := collect(s.slices, f, port, func(b *backend) bool { return b.ready })
		if len(found) > 0 {
			return endpointsOf(o.near(found))
		}
	}
	for _, f := range families {
		found := collect(s.slices, f, port, func(b *backend) bool { return b.draining })
		if len(found) > 0 {
			return endpointsOf(found)
		}
	}
	return nil
}

// families returns both families, in the order in which they are wanted.
func (o *options) families(s *service) []corev1.IPFamily {
	order := slices.Concat([]corev1.IPFamily{o.prefer}, s.families, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol})
	var list []corev1.IPFamily
	for _, f := range order {
		if f != "" && !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	return list
}

// candidate is an endpoint, and the zones that it is meant for.
type candidate struct {
	resolve.Endpoint
	zones []string
}

// collect returns the backends of a family that are wanted, on a port. An
// address that moves from one slice to another may be in both for a while; it
// counts once.
func collect(
	from []*endpointSlice, family corev1.IPFamily, want choice, wanted func(*backend) bool,
) []candidate {
	var list []candidate
	seen := make(map[netip.AddrPort]bool)
	for _, s := range from {
		port, ok := s.port(want)
		if !ok || string(s.kind) != string(family) {
			continue
		}
		for i := range s.backends {
			b := &s.backends[i]
			addr := netip.AddrPortFrom(b.addr, port.number)
			if !wanted(b) || seen[addr] {
				continue
			}
			seen[addr] = true
			id := resolve.ID{Addr: addr, Protocol: port.protocol}
			list = append(list, candidate{resolve.Endpoint{ID: id, Labels: b.labels}, b.zones})
		}
	}
	return list
}

// near returns the candidates that are meant for the caller's zone, if each
// says what it is meant for and one is meant for that. This is how kube-proxy
// does it (pkg/proxy/topology.go).
func (o *options) near(list []candidate) []candidate {
	if o.zone == "" {
		return list
	}
	var mine []candidate
	for _, c := range list {
		if len(c.zones) == 0 {
			return list
		}
		if slices.Contains(c.zones, o.zone) {
			mine = append(mine, c)
		}
	}
	if len(mine) == 0 {
		return list
	}
	return mine
}

// endpointsOf sorts, so that the same in another order is the same.
func endpointsOf(list []candidate) []resolve.Endpoint {
	endpoints := make([]resolve.Endpoint, 0, len(list))
	for _, c := range list {
		endpoints = append(endpoints, c.Endpoint)
	}
	slices.SortFunc(endpoints, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return endpoints
}
