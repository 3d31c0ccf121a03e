package k8s

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/gotower/gotower/resolve"
)

// known makes a snapshot of objects.
func known(t testing.TB, service *corev1.Service, objects ...*discoveryv1.EndpointSlice) snapshot {
	var s snapshot
	_, s.service = readService(service)
	for _, o := range objects {
		_, read := readSlice(o, service.Name)
		require.NotNil(t, read)
		s.slices = append(s.slices, read)
	}
	return s
}

// words is an update as a line.
func words(u resolve.Update) string {
	text := u.Kind.String()
	for _, e := range u.Endpoints {
		text += " " + e.Addr.String()
		if e.Protocol != resolve.Unknown {
			text += "/" + e.Protocol.String()
		}
		if e.Priority != 0 {
			text += fmt.Sprint("*", e.Priority)
		}
	}
	return text
}

func expect(t *testing.T, want string, s snapshot, port portRef, opts ...Option) {
	t.Helper()
	o := newOptions(opts)
	u, problems := o.answer(s, port)
	assert.Empty(t, problems)
	assert.Equal(t, want, words(u))
}

func TestConditions(t *testing.T) {
	eighty := portRef{number: 80}
	for _, tt := range []struct {
		name string
		list []discoveryv1.Endpoint
		want string
	}{
		{"ready by default", []discoveryv1.Endpoint{at("10.0.0.1")}, "replace 10.0.0.1:8080"},
		{"unready ones are out", []discoveryv1.Endpoint{at("10.0.0.1", unready), at("10.0.0.2")}, "replace 10.0.0.2:8080"},
		{
			"those that drain are out while one is ready",
			[]discoveryv1.Endpoint{at("10.0.0.1", draining), at("10.0.0.2")}, "replace 10.0.0.2:8080",
		},
		{
			"those that drain are in when none is ready",
			[]discoveryv1.Endpoint{at("10.0.0.1", draining), at("10.0.0.2", unready), at("10.0.0.3", gone)},
			"replace 10.0.0.1:8080",
		},
		{"serving is true by default", []discoveryv1.Endpoint{at("10.0.0.1", unready, func(e *discoveryv1.Endpoint) {
			e.Conditions.Terminating = new(true)
		})}, "replace 10.0.0.1:8080"},
		{"serving alone does not count", []discoveryv1.Endpoint{at("10.0.0.1", unready, func(e *discoveryv1.Endpoint) {
			e.Conditions.Serving = new(true)
		})}, "empty"},
		{"published though not ready: it comes as ready", []discoveryv1.Endpoint{at("10.0.0.1", gone, func(e *discoveryv1.Endpoint) {
			e.Conditions.Ready = new(true)
		})}, "replace 10.0.0.1:8080"},
		{"none of use", []discoveryv1.Endpoint{at("10.0.0.1", unready), at("10.0.0.3", gone)}, "empty"},
		{"the first address counts", []discoveryv1.Endpoint{at("10.0.0.1", func(e *discoveryv1.Endpoint) {
			e.Addresses = append(e.Addresses, "10.0.0.9")
		}), {}}, "replace 10.0.0.1:8080"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expect(t, tt.want, known(t, svc("web", 80), slice("a", "web", 8080, tt.list...)), eighty)
		})
	}
}

func TestPorts(t *testing.T) {
	two := svc("web", 80, 9090)
	two.Spec.Ports = append(two.Spec.Ports,
		corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
		corev1.ServicePort{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
		corev1.ServicePort{Name: "log", Port: 514, Protocol: corev1.ProtocolUDP})
	of := func(name string, number *int32, protocol corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: number, Protocol: &protocol}
	}
	s := slice("a", "web", 0, at("10.0.0.1"))
	s.Ports = []discoveryv1.EndpointPort{
		of("p0", new(int32(8080)), corev1.ProtocolTCP), of("p1", new(int32(9191)), corev1.ProtocolTCP),
		of("dns", new(int32(5353)), corev1.ProtocolUDP), of("dns-tcp", new(int32(5454)), corev1.ProtocolTCP),
		of("log", new(int32(1514)), corev1.ProtocolUDP),
	}
	s.Ports[1].AppProtocol = new(h2c)
	other := slice("b", "web", 0, at("10.0.0.2")) // another number by the same name: a port that pods name
	other.Ports = []discoveryv1.EndpointPort{of("p0", new(int32(8081)), corev1.ProtocolTCP), of("p1", nil, corev1.ProtocolTCP)}
	k := known(t, two, s, other)
	expect(t, "replace 10.0.0.1:8080 10.0.0.2:8081", k, portRef{number: 80})
	expect(t, "replace 10.0.0.1:8080 10.0.0.2:8081", k, portRef{name: "p0"})
	expect(t, "replace 10.0.0.1:9191/h2 10.0.0.2:9090", k, portRef{number: 9090}) // one without a number
	expect(t, "replace 10.0.0.1:5454", k, portRef{number: 53})
	o := newOptions(nil)
	for _, want := range []portRef{{number: 8080}, {number: 514}, {name: "log"}, {name: "http"}} {
		u, problems := o.answer(k, want)
		assert.Equal(t, "does not exist", words(u))
		require.Len(t, problems, 1)
		assert.Equal(t, "the Service has no TCP port "+want.String()+
			"; it has 80 (p0), 9090 (p1), 53 (dns) for UDP, 53 (dns-tcp), 514 (log) for UDP", problems[0])
	}
}

func TestPortsHeadlessService(t *testing.T) {
	headless := svc("web", 80)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	s := slice("a", "web", 8080, at("10.0.0.1"))
	expect(t, "replace 10.0.0.1:8080", known(t, headless, s), portRef{number: 80})
	expect(t, "replace 10.0.0.1:7000", known(t, headless, s), portRef{number: 7000})
	headless.Spec.Ports, s.Ports = nil, nil
	expect(t, "replace 10.0.0.1:80", known(t, headless, s), portRef{number: 80})
	o := newOptions(nil)
	u, problems := o.answer(known(t, headless, s), portRef{name: "http"})
	assert.Equal(t, "does not exist", words(u))
	assert.Equal(t, []string{`the Service has no TCP port "http"; it has no ports`}, problems)
}

func TestFamilies(t *testing.T) {
	both := svc("web", 80)
	both.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	four := slice("a", "web", 8080, at("10.0.0.1"), at("10.0.0.2"))
	six := slice("b", "web", 8080, at("fd00::1"), at("fd00::2"))
	eighty := portRef{number: 80}
	const ipv4, ipv6 = "replace 10.0.0.1:8080 10.0.0.2:8080", "replace [fd00::1]:8080 [fd00::2]:8080"
	expect(t, ipv6, known(t, both, four, six), eighty)
	expect(t, ipv4, known(t, svc("web", 80), four, six), eighty)

	unsaid := svc("web", 80)
	unsaid.Spec.IPFamilies = nil
	expect(t, ipv4, known(t, unsaid, six, four), eighty)

	// A family with a ready endpoint comes before one in which all terminate.
	for i := range six.Endpoints {
		draining(&six.Endpoints[i])
	}
	expect(t, ipv4, known(t, both, four, six), eighty)
	unready(&four.Endpoints[0])
	unready(&four.Endpoints[1])
	expect(t, ipv6, known(t, both, four, six), eighty)

	mapped := slice("a", "web", 8080, at("::ffff:10.0.0.1"))
	mapped.AddressType = discoveryv1.AddressTypeIPv4
	expect(t, "replace 10.0.0.1:8080", known(t, svc("web", 80), mapped), eighty)
}

// While an endpoint moves, both slices may have it with different conditions.
func TestEndpointInTwoSlices(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, now func(*discoveryv1.Endpoint)
		want     string
	}{
		{"ready in both", func(*discoveryv1.Endpoint) {}, func(*discoveryv1.Endpoint) {}, "replace 10.0.0.1:8080 10.0.0.2:8080"},
		{"ready in the second", unready, func(*discoveryv1.Endpoint) {}, "replace 10.0.0.1:8080 10.0.0.2:8080"},
		{"ready in the first", func(*discoveryv1.Endpoint) {}, draining, "replace 10.0.0.1:8080 10.0.0.2:8080"},
		{"drains in both", draining, draining, "replace 10.0.0.2:8080"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := slice("a", "web", 8080, at("10.0.0.1", tt.old))
			b := slice("b", "web", 8080, at("10.0.0.2"), at("10.0.0.1", tt.now))
			expect(t, tt.want, known(t, svc("web", 80), a, b), portRef{number: 80})
		})
	}
}

func TestZoneHints(t *testing.T) {
	list := func(list ...discoveryv1.Endpoint) snapshot {
		return known(t, svc("web", 80), slice("a", "web", 80, list...))
	}
	eighty := portRef{number: 80}
	all := list(at("10.0.0.1", hinted("a")), at("10.0.0.2", hinted("b", "a")), at("10.0.0.3", hinted("b")),
		at("10.0.0.4", unready))
	expect(t, "replace 10.0.0.1:80 10.0.0.2:80 10.0.0.3:80*1", all, eighty, WithZone("a"))
	expect(t, "replace 10.0.0.1:80*1 10.0.0.2:80 10.0.0.3:80", all, eighty, WithZone("b"))
	const everyone = "replace 10.0.0.1:80 10.0.0.2:80 10.0.0.3:80"
	expect(t, everyone, all, eighty)
	expect(t, everyone, all, eighty, WithZone("c")) // no hint for this zone
	for _, without := range []func(*discoveryv1.Endpoint){func(*discoveryv1.Endpoint) {}, hinted()} {
		expect(t, "replace 10.0.0.1:80 10.0.0.2:80", list(at("10.0.0.1", hinted("a")), at("10.0.0.2", without)), eighty, WithZone("b"))
		expect(t, "replace 10.0.0.1:80 10.0.0.2:80", list(at("10.0.0.1", hinted("a")), at("10.0.0.2", without)), eighty, WithZone("a"))
	}
	// Those that drain have one priority.
	drain := func(zone string) func(*discoveryv1.Endpoint) {
		return func(e *discoveryv1.Endpoint) { hinted(zone)(e); draining(e) }
	}
	expect(t, "replace 10.0.0.1:80 10.0.0.2:80", list(at("10.0.0.1", drain("a")), at("10.0.0.2", drain("b"))), eighty, WithZone("a"))
}

func TestIgnoredEndpoints(t *testing.T) {
	o := newOptions(nil)
	names := slice("names", "web", 80, at("db.example.org"))
	names.AddressType = discoveryv1.AddressTypeFQDN
	u, problems := o.answer(known(t, svc("web", 80), slice("a", "web", 80, at("10.0.0.1"), at("x")), names), portRef{number: 80})
	assert.Equal(t, "replace 10.0.0.1:80", words(u))
	require.Len(t, problems, 2)
	assert.Contains(t, problems[0], `EndpointSlice a: the endpoint "x" is ignored: not an IP address`)
	assert.Contains(t, problems[1], "EndpointSlice names is ignored: its addressType is FQDN")

	external := svc("web", 80)
	external.Spec.Type, external.Spec.ExternalName = corev1.ServiceTypeExternalName, "db.example.org"
	u, problems = o.answer(known(t, external), portRef{number: 80})
	assert.Equal(t, "empty", words(u))
	require.Len(t, problems, 1)
	assert.True(t, strings.HasSuffix(problems[0], "resolve db.example.org itself, by DNS"), problems[0])
}

func TestLabels(t *testing.T) {
	full := at("10.0.0.1", func(e *discoveryv1.Endpoint) {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "web-1", Namespace: "default"}
		e.NodeName, e.Zone = new("n1"), new("a")
	})
	other := at("10.0.0.2", func(e *discoveryv1.Endpoint) {
		e.TargetRef = &corev1.ObjectReference{Kind: "VirtualMachine", Name: "vm"}
	})
	o := newOptions(nil)
	u, _ := o.answer(known(t, svc("web", 80), slice("a", "web", 80, full, other)), portRef{number: 80})
	require.Len(t, u.Endpoints, 2)
	assert.Equal(t, map[string]string{
		"namespace": "default", "service": "web", "pod": "web-1", "node": "n1", "zone": "a",
	}, u.Endpoints[0].Labels)
	assert.Equal(t, map[string]string{"namespace": "default", "service": "web"}, u.Endpoints[1].Labels)
	assert.Zero(t, u.Endpoints[0].Weight)
	assert.Equal(t, []string{"a", ""}, []string{u.Endpoints[0].Locality, u.Endpoints[1].Locality})
}
