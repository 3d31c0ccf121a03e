package k8s

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// svc is a Service in the namespace default, with a port for each of ports;
// those are named by their order: "" for the only one, else p0, p1 and so on.
func svc(name string, ports ...int32) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	}
	for i, n := range ports {
		p := corev1.ServicePort{Port: n}
		if len(ports) > 1 {
			p.Name = fmt.Sprint("p", i)
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	return s
}

// slice is an EndpointSlice of a Service, of IPv4 or IPv6 as the first address
// is, with one port without a name.
func slice(name, service string, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: service},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "test"}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &port}},
		Endpoints:   endpoints,
	}
	if len(endpoints) > 0 && len(endpoints[0].Addresses[0]) > 0 && endpoints[0].Addresses[0][0] == 'f' {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

// at is an endpoint that is ready by default.
func at(address string, change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	for _, c := range change {
		c(&e)
	}
	return e
}

func unready(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) }

// draining is serving while it terminates.
func draining(e *discoveryv1.Endpoint) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
}

func gone(e *discoveryv1.Endpoint) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
}

func hinted(zones ...string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{}
		for _, z := range zones {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
	}
}
