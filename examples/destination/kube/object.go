package kube

import (
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// API groups.
const (
	gatewayGroup = kubeobject.GatewayGroup
	policyGroup  = "policy.linkerd.io"
	profileGroup = "linkerd.io"

	workloadGroup = "workload.linkerd.io"
)

// Names that linkerd and Kubernetes define and the controller looks for: labels, annotations, the
// proxy's container and its listen address.
const (
	controlPlaneLabel = "linkerd.io/control-plane-ns"
	templateHashLabel = "pod-template-hash"

	opaquePorts     = "config.linkerd.io/opaque-ports"
	skipInbound     = "config.linkerd.io/skip-inbound-ports"
	defaultInbound  = "config.linkerd.io/default-inbound-policy"
	retryPrefix     = "retry.linkerd.io/"
	timeoutPrefix   = "timeout.linkerd.io/"
	balancerPrefix  = "balancer.linkerd.io/"
	alphaPrefix     = "balancer.alpha.linkerd.io/"
	proxyContainer  = "linkerd-proxy"
	listenVariable  = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR"
	inboundPort     = 4143
	workloadService = "kubernetes.io/service-name"
)

// service is what the controller keeps from a Service.
type service struct {
	metav1.ObjectMeta

	addrs    []netip.Addr // cluster IPs
	external bool         // the type is ExternalName
	family   string       // primary address family, spelled as in an EndpointSlice's addressType
	ports    []namedPort

	link, linkedName string // for a mirror: the linked cluster and the Service's name there
}

// namedPort is a port with its name, or "" if it has none.
type namedPort struct {
	name string
	port uint16
}

func newPort(name string, port int32) namedPort {
	return namedPort{intern(name), uint16(port)}
}

// slice is what the controller keeps from an EndpointSlice.
type slice struct {
	metav1.ObjectMeta

	service   string // name of the Service that it belongs to
	family    string // its addressType: IPv4, IPv6 or FQDN
	ports     []namedPort
	endpoints []endpoint
}

// endpoint is one ready endpoint of an EndpointSlice.
type endpoint struct {
	addr           netip.Addr
	pod, external  string // name of the Pod or ExternalWorkload behind the address
	hostname, zone string
	hints          []string // zones whose clients should use this endpoint
}

// pod is what the controller keeps from a Pod.
type pod struct {
	metav1.ObjectMeta

	addrs                []netip.Addr // empty if the pod has ended or uses the host's network
	account              string       // name of the ServiceAccount
	ownerKind, ownerName string
	proxy                uint16 // the proxy's inbound port; 0 without a proxy
	ports                []namedPort
}

// intern returns a string equal to s. Equal strings share memory, which matters because thousands
// of pods repeat the same names.
func intern(s string) string { return unique.Make(s).Value() }

// meta copies only the fields of m that the controller uses, to save memory. Of the annotations, it
// copies those of linkerd. It copies the labels if the argument labels is true.
func meta(m *metav1.ObjectMeta, labels bool) metav1.ObjectMeta {
	reduced := metav1.ObjectMeta{
		Name: m.Name, Namespace: intern(m.Namespace), ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
	}
	// Strings are interned, because thousands of objects repeat the same ones.
	for key, value := range m.Annotations {
		if strings.Contains(key, "linkerd.io/") {
			if reduced.Annotations == nil {
				reduced.Annotations = make(map[string]string)
			}
			reduced.Annotations[intern(key)] = intern(value)
		}
	}
	if labels && len(m.Labels) > 0 {
		reduced.Labels = make(map[string]string, len(m.Labels))
		for key, value := range m.Labels {
			reduced.Labels[intern(key)] = intern(value)
		}
	}
	return reduced
}

// The functions below convert an API object to the type that an informer stores. They return an
// object that already has this type unchanged, because informers may convert twice.

// transformService converts a Service to a service, with only the TCP ports.
func transformService(o any) (any, error) {
	// The informer also passes objects that have been transformed before.
	received, ok := o.(*corev1.Service)
	if !ok {
		return o, nil
	}
	// false: the controller needs no labels of Services.
	s := &service{ObjectMeta: meta(&received.ObjectMeta, false), external: received.Spec.Type == corev1.ServiceTypeExternalName}
	// Only mirrors of Services in linked clusters have these labels.
	s.link = received.Labels[remoteDiscovery]
	s.linkedName = received.Labels[remoteService]
	for _, text := range received.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil { // not "None"
			s.addrs = append(s.addrs, addr.Unmap())
		}
	}
	// The first family is the primary one.
	if len(received.Spec.IPFamilies) > 0 {
		s.family = string(received.Spec.IPFamilies[0])
	}
	for _, p := range received.Spec.Ports {
		if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
			s.ports = append(s.ports, newPort(p.Name, p.Port))
		}
	}
	return s, nil
}

// transformSlice converts an EndpointSlice to a slice, with only the TCP ports and the ready endpoints
// that have an IP address.
func transformSlice(o any) (any, error) {
	received, ok := o.(*discoveryv1.EndpointSlice)
	// The informer also passes objects that have been transformed before.
	if !ok {
		return o, nil
	}
	s := &slice{
		ObjectMeta: meta(&received.ObjectMeta, false), service: received.Labels[workloadService],
		family: intern(string(received.AddressType)),
	}
	for _, p := range received.Ports {
		if kubeobject.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && p.Port != nil {
			s.ports = append(s.ports, newPort(kubeobject.Or(p.Name, ""), *p.Port))
		}
	}
	for _, e := range received.Endpoints {
		// A missing condition counts as ready, as Kubernetes defines it.
		if !kubeobject.Or(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(e.Addresses[0]) // an endpoint with several addresses is still one endpoint
		if err != nil {
			continue // a host name
		}
		ep := endpoint{addr: addr.Unmap(), hostname: kubeobject.Or(e.Hostname, ""), zone: intern(kubeobject.Or(e.Zone, ""))}
		if t := e.TargetRef; t != nil && t.Kind == "Pod" {
			ep.pod = t.Name
		} else if t != nil && t.Kind == "ExternalWorkload" {
			ep.external = t.Name
		}
		if e.Hints != nil {
			for _, zone := range e.Hints.ForZones {
				ep.hints = append(ep.hints, intern(zone.Name))
			}
		}
		s.endpoints = append(s.endpoints, ep)
	}
	return s, nil
}

// transformPod converts a Pod to a pod. It leaves out the addresses if the pod has ended, because
// another pod may get them, or uses the host's network, because other pods have the same ones. The
// named ports are those of all containers except the proxy.
func transformPod(o any) (any, error) {
	received, ok := o.(*corev1.Pod)
	// The informer also passes objects that have been transformed before.
	if !ok {
		return o, nil
	}
	p := &pod{ObjectMeta: meta(&received.ObjectMeta, true), account: intern(received.Spec.ServiceAccountName)} // with labels
	if !received.Spec.HostNetwork && received.Status.Phase != corev1.PodSucceeded && received.Status.Phase != corev1.PodFailed {
		for _, ip := range received.Status.PodIPs {
			if addr, err := netip.ParseAddr(ip.IP); err == nil {
				p.addrs = append(p.addrs, addr.Unmap())
			}
		}
	}
	p.ownerKind, p.ownerName = owner(received)
	// The proxy may be a native sidecar, which is an init container.
	for _, c := range slices.Concat(received.Spec.InitContainers, received.Spec.Containers) {
		if c.Name == proxyContainer {
			p.proxy = listenPort(c.Env)
			continue
		}
		for _, port := range c.Ports {
			if port.Name != "" {
				p.ports = append(p.ports, newPort(port.Name, port.ContainerPort))
			}
		}
	}
	return p, nil
}

// owner returns the workload that owns the pod, with its kind in lower case. A ReplicaSet that is
// named after the pod template's hash belongs to a Deployment, which is returned instead. A pod
// that nothing owns is its own owner.
func owner(p *corev1.Pod) (kind, name string) {
	// One owner is the controller. If there is only one owner, it is taken whatever it is.
	for _, o := range p.OwnerReferences {
		if !kubeobject.Or(o.Controller, false) && len(p.OwnerReferences) > 1 {
			continue
		}
		kind = strings.ToLower(o.Kind)
		name = o.Name
		// The suffix is the hash of the pod template, which a Deployment adds to the names of its ReplicaSets.
		if deployment, ok := strings.CutSuffix(name, "-"+p.Labels[templateHashLabel]); ok && kind == "replicaset" {
			return "deployment", intern(deployment)
		}
		return intern(kind), intern(name)
	}
	return "pod", p.Name
}

// listenPort finds the inbound listener's port in the proxy's environment. It falls back to
// inboundPort.
func listenPort(env []corev1.EnvVar) uint16 {
	for _, e := range env {
		if e.Name == listenVariable {
			// The variable contains the address on which the inbound side listens.
			if addr, err := netip.ParseAddrPort(e.Value); err == nil && addr.Port() != 0 {
				return addr.Port()
			}
		}
	}
	return inboundPort
}

// resource is an object defined by a CustomResourceDefinition. spec is nil if it could not be
// decoded; the controller ignores such an object.
type resource[T any] struct {
	*unstructured.Unstructured

	spec *T
}

// transformResource decodes the spec of an object that a CustomResourceDefinition defines.
func transformResource[T any](o any) (any, error) {
	// The informer also passes objects that have been transformed before.
	received, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	// Managed fields are large and not needed.
	received.SetManagedFields(nil)
	decoded, err := kubeobject.Decode[struct {
		Spec T `json:"spec"`
	}](received)
	if err != nil {
		return &resource[T]{Unstructured: received}, nil //nolint:nilerr // documented
	}
	return &resource[T]{received, &decoded.Spec}, nil
}

// The decoded specs of resources, reduced to the fields that the controller uses.
type (
	// route is an HTTPRoute, GRPCRoute, TLSRoute or TCPRoute.
	route struct {
		ParentRefs []kubeobject.ParentReference `json:"parentRefs"`
		Hostnames  []string                     `json:"hostnames"`
		Rules      []rule                       `json:"rules"`
	}

	// rule is one rule of a route. The controller ignores all other fields.
	rule struct {
		Matches     []map[string]any `json:"matches"`
		Filters     []any            `json:"filters"`
		BackendRefs []backendRef     `json:"backendRefs"`
		Timeouts    map[string]any   `json:"timeouts"`
		Persistence json.RawMessage  `json:"sessionPersistence"`
		Retry       json.RawMessage  `json:"retry"`
	}

	backendRef struct {
		kubeobject.Reference

		Port    *uint16 `json:"port"`
		Weight  *uint32 `json:"weight"`
		Filters []any   `json:"filters"`
	}

	// server is linkerd's Server.
	server struct {
		PodSelector   *metav1.LabelSelector `json:"podSelector"`
		External      *metav1.LabelSelector `json:"externalWorkloadSelector"`
		Port          unstructuredText      `json:"port"`
		ProxyProtocol string                `json:"proxyProtocol"`
		AccessPolicy  string                `json:"accessPolicy"`
	}

	authorizationPolicy struct {
		TargetRef kubeobject.Reference   `json:"targetRef"`
		Required  []kubeobject.Reference `json:"requiredAuthenticationRefs"`
	}

	meshTLSAuthentication struct {
		Identities   []string               `json:"identities"`
		IdentityRefs []kubeobject.Reference `json:"identityRefs"`
	}

	networkAuthentication struct {
		Networks []network `json:"networks"`
	}

	network struct {
		CIDR   string   `json:"cidr"`
		Except []string `json:"except"`
	}

	// serverAuthorization permits clients to connect to Servers, selected by name or by labels.
	serverAuthorization struct {
		Server struct {
			Name     string                `json:"name"`
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"server"`
		Client struct {
			Networks        []network `json:"networks"`
			Unauthenticated bool      `json:"unauthenticated"`
			MeshTLS         *struct {
				Unauthenticated bool                   `json:"unauthenticatedTLS"`
				Identities      []string               `json:"identities"`
				ServiceAccounts []kubeobject.Reference `json:"serviceAccounts"`
			} `json:"meshTLS"`
		} `json:"client"`
	}

	// rateLimitPolicy is an HTTPLocalRateLimitPolicy.
	rateLimitPolicy struct {
		TargetRef kubeobject.Reference `json:"targetRef"`
		Total     map[string]any       `json:"total"`
		Identity  map[string]any       `json:"identity"`
		Overrides []struct {
			Rate    any                    `json:"requestsPerSecond"`
			Clients []kubeobject.Reference `json:"clientRefs"`
		} `json:"overrides"`
	}
)

// unstructuredText is the text of a JSON string or number.
type unstructuredText string

// UnmarshalJSON decodes a string or a number.
func (t *unstructuredText) UnmarshalJSON(text []byte) error {
	if s, err := strconv.Unquote(string(text)); err == nil {
		*t = unstructuredText(s)
	} else {
		*t = unstructuredText(text)
	}
	return nil
}

// portSet is a set of ports as inclusive ranges. Linkerd's annotations write it as
// "25,4000-4100".
type portSet [][2]uint16

// parsePorts parses a list of ports and ranges, skipping invalid items.
func parsePorts(text string) (set portSet) {
	for item := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			high = low
		}
		// A single port is a range of one.
		first, err1 := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err1 == nil && err2 == nil && first <= last {
			set = append(set, [2]uint16{uint16(first), uint16(last)})
		}
	}
	return set
}

func (s portSet) has(port uint16) bool {
	return slices.ContainsFunc(s, func(r [2]uint16) bool { return r[0] <= port && port <= r[1] })
}

// unchanged reports whether an update from previous to current leaves all of the controller's answers
// the same, as a status update does. Most updates in a busy cluster are of this kind, and
// skipping them saves a translation. Both objects must have been converted by a function such as
// transformService.
func unchanged(previous, current any) bool {
	// Updates with a new ResourceVersion only are compared without it.
	switch a := previous.(type) {
	case *service:
		if b, ok := current.(*service); ok {
			expected := *a
			expected.ResourceVersion = b.ResourceVersion
			return reflect.DeepEqual(expected, *b)
		}
	case *slice:
		if b, ok := current.(*slice); ok {
			expected := *a
			expected.ResourceVersion = b.ResourceVersion
			return reflect.DeepEqual(expected, *b)
		}
	case *pod:
		if b, ok := current.(*pod); ok {
			expected := *a
			expected.ResourceVersion = b.ResourceVersion
			return reflect.DeepEqual(expected, *b)
		}
	case *node: // the kubelet updates its status all the time
		b, ok := current.(*node)
		return ok && a.zone == b.zone
	case *namespace:
		b, ok := current.(*namespace)
		return ok && maps.Equal(a.Annotations, b.Annotations)
	// Kubernetes increases an object's generation with each change of its spec. 0 means that the kind has no
	// generation.
	case metav1.Object:
		b, ok := current.(metav1.Object)
		return ok && a.GetUID() == b.GetUID() && a.GetGeneration() != 0 && a.GetGeneration() == b.GetGeneration() &&
			maps.Equal(a.GetAnnotations(), b.GetAnnotations()) && maps.Equal(a.GetLabels(), b.GetLabels())
	}
	return false
}
