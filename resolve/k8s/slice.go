package k8s

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/gotower/gotower/resolve"
)

// h2c is the appProtocol of HTTP/2 over cleartext with prior knowledge (KEP-3726).
const h2c = "kubernetes.io/h2c"

// endpointSlice holds the fields of an EndpointSlice that this package uses. It must not be
// changed.
type endpointSlice struct {
	name     string
	kind     discoveryv1.AddressType
	ports    []slicePort
	backends []backend
	unread   []string // invalid addresses
}

// slicePort is one port in an EndpointSlice, at which all of its endpoints listen.
type slicePort struct {
	name     string
	number   uint16 // 0 if the slice does not specify it
	protocol resolve.Protocol
}

// backend is one endpoint in an EndpointSlice, with all of the slice's ports.
type backend struct {
	addr     netip.Addr
	ready    bool     // may get requests
	draining bool     // not ready, but serving while it terminates
	zones    []string // the zones in the topology hints
	labels   map[string]string
}

// readSlice converts obj to an endpointSlice and returns it with its name. It returns "" and nil
// if obj is not an EndpointSlice or belongs to another Service.
func readSlice(obj any, service string) (name string, s *endpointSlice) {
	o, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok || o.Labels[discoveryv1.LabelServiceName] != service {
		return "", nil
	}
	s = &endpointSlice{name: o.Name, kind: o.AddressType}
	// Ports for UDP or SCTP are left out. A missing protocol means TCP.
	for _, p := range o.Ports {
		if deref(p.Protocol, corev1.ProtocolTCP) != corev1.ProtocolTCP {
			continue
		}
		port := slicePort{name: deref(p.Name, ""), number: portNumber(deref(p.Port, 0))}
		if deref(p.AppProtocol, "") == h2c {
			port.protocol = resolve.H2
		}
		s.ports = append(s.ports, port)
	}
	// The addresses are names. The slice stays, without backends, so that options.answer can report it.
	if s.kind == discoveryv1.AddressTypeFQDN {
		return o.Name, s
	}
	s.backends = make([]backend, 0, len(o.Endpoints))
	for i := range o.Endpoints {
		s.add(&o.Endpoints[i], o.Namespace, service)
	}
	return o.Name, s
}

// add adds an endpoint to s, with only its first address, as kube-proxy does.
func (s *endpointSlice) add(e *discoveryv1.Endpoint, namespace, service string) {
	if len(e.Addresses) == 0 {
		return
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		s.unread = append(s.unread, e.Addresses[0])
		return
	}
	b := backend{
		addr: addr.Unmap(),
		// According to the API, a missing condition counts as ready.
		ready:  deref(e.Conditions.Ready, true),
		labels: labelsOf(e, namespace, service),
	}
	// Such an endpoint is a Pod that is about to end, but still answers requests.
	b.draining = !b.ready && deref(e.Conditions.Serving, true) && deref(e.Conditions.Terminating, false)
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			b.zones = append(b.zones, z.Name)
		}
	}
	s.backends = append(s.backends, b)
}

// labelsOf returns the labels of an endpoint: those of its Service, Pod, node and zone that are known.
func labelsOf(e *discoveryv1.Endpoint, namespace, service string) map[string]string {
	m := map[string]string{"namespace": namespace, "service": service}
	// An endpoint may also be something else than a Pod, such as an address that a user wrote.
	if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" {
		m["pod"] = ref.Name
	}
	if node := deref(e.NodeName, ""); node != "" {
		m["node"] = node
	}
	if zone := deref(e.Zone, ""); zone != "" {
		m["zone"] = zone
	}
	return m
}

// deref returns *p, or fallback if p is nil, as Kubernetes does for a field that was left out.
func deref[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

// port returns the slice's port that c selects, or false if there is none.
func (s *endpointSlice) port(c choice) (slicePort, bool) {
	// The number is then the endpoint's own: a headless Service does not map ports.
	if c.direct {
		return slicePort{number: c.number}, true
	}
	for _, p := range s.ports {
		if p.name == c.name {
			// A port without a number means that of the Service.
			if p.number == 0 {
				p.number = c.number
			}
			return p, true
		}
	}
	return slicePort{}, false
}
