package k8s

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// service holds the fields of a Service that this package uses.
type service struct {
	headless bool   // it has no address of its own, so that connections use the ports of its endpoints
	external string // the name that an ExternalName Service refers to, or ""
	families []corev1.IPFamily
	ports    []servicePort
}

// servicePort is one entry in spec.ports of a Service.
type servicePort struct {
	name   string
	number uint16
	nonTCP corev1.Protocol // the protocol of the port if it is not TCP, or ""
}

// readService returns the name and the used fields of obj, an object from the Services' informer. It
// returns nil if obj is not a Service.
func readService(obj any) (name string, s *service) {
	k8sService, ok := obj.(*corev1.Service)
	if !ok {
		return "", nil
	}
	s = &service{
		headless: k8sService.Spec.ClusterIP == corev1.ClusterIPNone,
		families: k8sService.Spec.IPFamilies,
	}
	// Only then: the field may be a leftover of an earlier type.
	if k8sService.Spec.Type == corev1.ServiceTypeExternalName {
		s.external = k8sService.Spec.ExternalName
	}
	for _, p := range k8sService.Spec.Ports {
		port := servicePort{name: p.Name, number: portNumber(p.Port)}
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			port.nonTCP = p.Protocol
		}
		s.ports = append(s.ports, port)
	}
	return k8sService.Name, s
}

// portNumber returns n as a port, or 0 if n is not a valid port.
func portNumber(n int32) uint16 {
	if n < 1 || n > 65535 {
		return 0
	}
	return uint16(n)
}

// choice says how to find a port in an EndpointSlice. If direct is false, it is the port with the
// given name in the slice. If direct is true, it is the given number, and the slice's ports are
// ignored.
type choice struct {
	name   string
	number uint16 // used if direct is true or the port in the slice has no number
	direct bool   // whether the ports of the slice are ignored
}

// choose converts want, one of the Service's ports, to the matching port in the EndpointSlices.
// If the Service has no such port, choose returns a text that says so. A headless Service accepts
// every port number.
func (s *service) choose(want portRef) (choice, string) {
	for _, p := range s.ports {
		// A number in a target selects by number, and otherwise the name does. A port for UDP or SCTP cannot be used.
		if p.nonTCP == "" && (want.number != 0 && p.number == want.number || want.number == 0 && p.name == want.name) {
			return choice{name: p.name, number: p.number}, ""
		}
	}
	// A headless Service has no address of its own, so a port need not be declared to be reached.
	if s.headless && want.number != 0 {
		return choice{number: want.number, direct: true}, ""
	}
	return choice{}, fmt.Sprintf("the Service has no TCP port %v; it has %s", want, s.portList())
}

// portList returns the Service's ports as a text for an error, such as "80 (http), 53 for UDP".
func (s *service) portList() string {
	if len(s.ports) == 0 {
		return "no ports"
	}
	list := make([]string, 0, len(s.ports))
	for _, p := range s.ports {
		text := strconv.Itoa(int(p.number))
		if p.name != "" {
			text += fmt.Sprintf(" (%s)", p.name)
		}
		if p.nonTCP != "" {
			text += " for " + string(p.nonTCP)
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}
