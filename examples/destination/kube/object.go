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

// The API groups of the objects.
const (
	gatewayGroup = kubeobject.GatewayGroup
	policyGroup  = "policy.linkerd.io"
	profileGroup = "linkerd.io"
)

// The names that the controller reads in objects, as linkerd and Kubernetes define them:
// labels, annotations, and the container of the proxy with its listener.
const (
	controlPlaneLabel = "linkerd.io/control-plane-ns"
	templateHashLabel = "pod-template-hash"

	opaquePorts     = "config.linkerd.io/opaque-ports"
	skipInbound     = "config.linkerd.io/skip-inbound-ports"
	defaultInbound  = "config.linkerd.io/default-inbound-policy"
	retryPrefix     = "retry.linkerd.io/"
	timeoutPrefix   = "timeout.linkerd.io/"
	balancerPrefix  = "balancer.linkerd.io/"
	proxyContainer  = "linkerd-proxy"
	listenVariable  = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR"
	inboundPort     = 4143
	workloadService = "kubernetes.io/service-name"
)

// service has the parts of a Service that the controller uses.
type service struct {
	metav1.ObjectMeta

	addrs    []netip.Addr // cluster IP addresses
	external bool         // the type is ExternalName
	family   string       // the primary address family, as in the addressType of an EndpointSlice
	ports    []namedPort
}

type namedPort struct {
	name string
	port uint16
}

func newPort(name string, port int32) namedPort {
	return namedPort{intern(name), uint16(port)}
}

// slice has the parts of an EndpointSlice that the controller uses.
type slice struct {
	metav1.ObjectMeta

	service   string
	family    string
	ports     []namedPort
	endpoints []endpoint
}

// endpoint is one ready endpoint of a slice.
type endpoint struct {
	addr                netip.Addr
	pod, hostname, zone string
}

// pod has the parts of a Pod that the controller uses.
type pod struct {
	metav1.ObjectMeta

	addrs                []netip.Addr // empty if the pod has ended or uses the network of the host
	account              string
	ownerKind, ownerName string
	proxy                uint16 // inbound port of the proxy; 0 without a proxy
	ports                []namedPort
}

// intern returns a string equal to s. The results of all calls with equal strings share one
// copy in memory.
func intern(s string) string { return unique.Make(s).Value() }

// meta returns the fields of m that the controller uses. It keeps only the annotations of
// linkerd. It keeps the labels only if the parameter labels is true.
func meta(m *metav1.ObjectMeta, labels bool) metav1.ObjectMeta {
	kept := metav1.ObjectMeta{
		Name: m.Name, Namespace: intern(m.Namespace), ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
	}
	for key, value := range m.Annotations {
		if strings.Contains(key, "linkerd.io/") {
			if kept.Annotations == nil {
				kept.Annotations = make(map[string]string)
			}
			kept.Annotations[intern(key)] = intern(value)
		}
	}
	if labels && len(m.Labels) > 0 {
		kept.Labels = make(map[string]string, len(m.Labels))
		for key, value := range m.Labels {
			kept.Labels[intern(key)] = intern(value)
		}
	}
	return kept
}

// The functions below convert an object of the API server to the type that an informer
// stores. If the object already has this type, they return it unchanged.

func transformService(o any) (any, error) {
	from, ok := o.(*corev1.Service)
	if !ok {
		return o, nil
	}
	s := &service{ObjectMeta: meta(&from.ObjectMeta, false), external: from.Spec.Type == corev1.ServiceTypeExternalName}
	for _, text := range from.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil { // not "None"
			s.addrs = append(s.addrs, addr.Unmap())
		}
	}
	if len(from.Spec.IPFamilies) > 0 {
		s.family = string(from.Spec.IPFamilies[0])
	}
	for _, p := range from.Spec.Ports {
		if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
			s.ports = append(s.ports, newPort(p.Name, p.Port))
		}
	}
	return s, nil
}

func transformSlice(o any) (any, error) {
	from, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return o, nil
	}
	s := &slice{ObjectMeta: meta(&from.ObjectMeta, false), service: from.Labels[workloadService], family: intern(string(from.AddressType))}
	for _, p := range from.Ports {
		if kubeobject.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && p.Port != nil {
			s.ports = append(s.ports, newPort(kubeobject.Or(p.Name, ""), *p.Port))
		}
	}
	for _, e := range from.Endpoints {
		if !kubeobject.Or(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(e.Addresses[0]) // all addresses are of one endpoint
		if err != nil {
			continue // a host name
		}
		to := endpoint{addr: addr.Unmap(), hostname: kubeobject.Or(e.Hostname, ""), zone: intern(kubeobject.Or(e.Zone, ""))}
		if t := e.TargetRef; t != nil && t.Kind == "Pod" {
			to.pod = t.Name
		}
		s.endpoints = append(s.endpoints, to)
	}
	return s, nil
}

func transformPod(o any) (any, error) {
	from, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	p := &pod{ObjectMeta: meta(&from.ObjectMeta, true), account: intern(from.Spec.ServiceAccountName)}
	if !from.Spec.HostNetwork && from.Status.Phase != corev1.PodSucceeded && from.Status.Phase != corev1.PodFailed {
		for _, ip := range from.Status.PodIPs {
			if addr, err := netip.ParseAddr(ip.IP); err == nil {
				p.addrs = append(p.addrs, addr.Unmap())
			}
		}
	}
	p.ownerKind, p.ownerName = owner(from)
	for _, c := range slices.Concat(from.Spec.InitContainers, from.Spec.Containers) {
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

// owner returns the kind, in lower case, and the name of the workload that owns the pod. If
// a ReplicaSet has a name that ends with the hash of the pod template, its Deployment is
// the owner. A pod without an owner is its own owner.
func owner(p *corev1.Pod) (kind, name string) {
	for _, o := range p.OwnerReferences {
		if !kubeobject.Or(o.Controller, false) && len(p.OwnerReferences) > 1 {
			continue
		}
		kind, name = strings.ToLower(o.Kind), o.Name
		if deployment, ok := strings.CutSuffix(name, "-"+p.Labels[templateHashLabel]); ok && kind == "replicaset" {
			return "deployment", intern(deployment)
		}
		return intern(kind), intern(name)
	}
	return "pod", p.Name
}

// listenPort returns the port of the inbound listener in env, the environment of the proxy.
// Without a valid address in env, it returns inboundPort.
func listenPort(env []corev1.EnvVar) uint16 {
	for _, e := range env {
		if e.Name == listenVariable {
			if addr, err := netip.ParseAddrPort(e.Value); err == nil && addr.Port() != 0 {
				return addr.Port()
			}
		}
	}
	return inboundPort
}

// resource is an object of a CustomResourceDefinition. spec is its field spec, decoded to a
// T. If the decoding fails, spec is nil, and the controller ignores the object.
type resource[T any] struct {
	*unstructured.Unstructured

	spec *T
}

func transformResource[T any](o any) (any, error) {
	from, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	from.SetManagedFields(nil)
	decoded, err := kubeobject.Decode[struct {
		Spec T `json:"spec"`
	}](from)
	if err != nil {
		return &resource[T]{Unstructured: from}, nil //nolint:nilerr // documented
	}
	return &resource[T]{from, &decoded.Spec}, nil
}

// The types below are the decoded specs of resources. They have only the fields that the
// controller uses.
type (
	// route is an HTTPRoute or a GRPCRoute.
	route struct {
		ParentRefs []kubeobject.ParentReference `json:"parentRefs"`
		Hostnames  []string                     `json:"hostnames"`
		Rules      []rule                       `json:"rules"`
	}

	// rule is one rule of a route. The controller ignores the fields of a rule that are not
	// here.
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

	// serviceProfile is a ServiceProfile of linkerd.
	serviceProfile struct {
		OpaquePorts map[string]any `json:"opaquePorts"`
		Routes      []profileRoute `json:"routes"`
		RetryBudget *struct {
			RetryRatio          float64 `json:"retryRatio"`
			MinRetriesPerSecond uint32  `json:"minRetriesPerSecond"`
			TTL                 string  `json:"ttl"`
		} `json:"retryBudget"`
		DstOverrides []struct {
			Authority string           `json:"authority"`
			Weight    unstructuredText `json:"weight"`
		} `json:"dstOverrides"`
	}

	profileRoute struct {
		Name            string        `json:"name"`
		Condition       *requestMatch `json:"condition"`
		ResponseClasses []struct {
			Condition *responseMatch `json:"condition"`
			IsFailure bool           `json:"isFailure"`
		} `json:"responseClasses"`
		IsRetryable bool   `json:"isRetryable"`
		Timeout     string `json:"timeout"`
	}

	requestMatch struct {
		All       []requestMatch `json:"all"`
		Any       []requestMatch `json:"any"`
		Not       *requestMatch  `json:"not"`
		PathRegex string         `json:"pathRegex"`
		Method    string         `json:"method"`
	}

	responseMatch struct {
		All    json.RawMessage `json:"all"`
		Any    json.RawMessage `json:"any"`
		Not    json.RawMessage `json:"not"`
		Status *struct {
			Min uint32 `json:"min"`
			Max uint32 `json:"max"`
		} `json:"status"`
	}

	// server is a Server of linkerd.
	server struct {
		PodSelector   *metav1.LabelSelector `json:"podSelector"`
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

	// serverAuthorization permits clients to connect to Servers, which it selects by name
	// or by labels.
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

// unstructuredText is the text of a string or a number in JSON.
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

// portSet is a set of ports, as ranges. Each range has its first and its last port.
// Annotations of linkerd contain a set as text: "25,4000-4100".
type portSet [][2]uint16

// parsePorts parses a list of ports and ranges. It ignores invalid items.
func parsePorts(text string) (set portSet) {
	for item := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			high = low
		}
		from, err1 := strconv.ParseUint(low, 10, 16)
		to, err2 := strconv.ParseUint(high, 10, 16)
		if err1 == nil && err2 == nil && from <= to {
			set = append(set, [2]uint16{uint16(from), uint16(to)})
		}
	}
	return set
}

func (s portSet) has(port uint16) bool {
	return slices.ContainsFunc(s, func(r [2]uint16) bool { return r[0] <= port && port <= r[1] })
}

// unchanged reports whether the update of an object from before to after has no effect on
// the answers of the controller. An example is an update of a status. Both objects have
// been converted by a function such as transformService.
func unchanged(before, after any) bool {
	switch a := before.(type) {
	case *service:
		if b, ok := after.(*service); ok {
			same := *a
			same.ResourceVersion = b.ResourceVersion
			return reflect.DeepEqual(same, *b)
		}
	case *slice:
		if b, ok := after.(*slice); ok {
			same := *a
			same.ResourceVersion = b.ResourceVersion
			return reflect.DeepEqual(same, *b)
		}
	case *pod:
		if b, ok := after.(*pod); ok {
			same := *a
			same.ResourceVersion = b.ResourceVersion
			return reflect.DeepEqual(same, *b)
		}
	case metav1.Object:
		b, ok := after.(metav1.Object)
		return ok && a.GetUID() == b.GetUID() && a.GetGeneration() != 0 && a.GetGeneration() == b.GetGeneration() &&
			maps.Equal(a.GetAnnotations(), b.GetAnnotations()) && maps.Equal(a.GetLabels(), b.GetLabels())
	}
	return false
}
