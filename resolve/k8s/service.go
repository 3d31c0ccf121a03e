package k8s

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// service has the fields of a Service that this package uses.
type service struct {
	headless bool
	external string // the name that an ExternalName Service refers to, or ""
	families []corev1.IPFamily
	ports    []servicePort
}

type servicePort struct {
	name   string
	number uint16
	other  corev1.Protocol // the protocol of the port if it is not TCP, or ""
}

func readService(obj any) (name string, s *service) {
	o, ok := obj.(*corev1.Service)
	if !ok {
		return "", nil
	}
	s = &service{
		headless: o.Spec.ClusterIP == corev1.ClusterIPNone,
		families: o.Spec.IPFamilies,
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		s.external = o.Spec.ExternalName
	}
	for _, p := range o.Spec.Ports {
		port := servicePort{name: p.Name, number: portNumber(p.Port)}
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			port.other = p.Protocol
		}
		s.ports = append(s.ports, port)
	}
	return o.Name, s
}

func portNumber(n int32) uint16 {
	if n < 1 || n > 65535 {
		return 0
	}
	return uint16(n)
}

// choice says how to find a port in an EndpointSlice. If direct is false, it is the port with the
// given name in the slice. If direct is true, it is the given number, and the ports of the slice
// are ignored.
type choice struct {
	name   string
	number uint16 // used if direct is true or the port in the slice has no number
	direct bool   // whether the ports of the slice are ignored
}

// choose converts the argument want, a port of the Service, to the matching port of the
// EndpointSlices. If the Service does not have the port, choose returns a text that says so. A
// headless Service accepts every port number.
func (s *service) choose(want portRef) (choice, string) {
	for _, p := range s.ports {
		if p.other == "" && (want.number != 0 && p.number == want.number || want.number == 0 && p.name == want.name) {
			return choice{name: p.name, number: p.number}, ""
		}
	}
	if s.headless && want.number != 0 {
		return choice{number: want.number, direct: true}, ""
	}
	return choice{}, fmt.Sprintf("the Service has no TCP port %v; it has %s", want, s.portList())
}

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
		if p.other != "" {
			text += " for " + string(p.other)
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}
