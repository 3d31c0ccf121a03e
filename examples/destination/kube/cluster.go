package kube

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// Settings configure how a [Watcher] translates a cluster's objects. Start with
// [DefaultSettings], which matches linkerd's Helm chart.
type Settings struct {
	ClusterDomain   string                  // suffix of all Services' DNS names
	TrustDomain     string                  // suffix of all pods' identities
	ControlPlane    string                  // linkerd's namespace, which is part of every identity
	OpaquePorts     string                  // such as "25,4000-4100"; an annotation overrides it
	DefaultInbound  controller.AccessPolicy // for ports without a Server; an annotation overrides it
	ClusterNetworks []netip.Prefix          // empty means linkerd's default networks
	EgressNamespace string                  // its EgressNetworks apply to clients in every namespace
	ControllerName  string                  // this controller's name in route statuses
	LinkedClusters  bool                    // whether to read the Secrets of linked clusters, which requires more rights
}

// DefaultSettings returns the defaults of linkerd's Helm chart, and this controller's own
// ControllerName.
func DefaultSettings() Settings {
	return Settings{
		ClusterDomain: "cluster.local", TrustDomain: "cluster.local", ControlPlane: "linkerd",
		OpaquePorts: "25,587,3306,4444,5432,6379,9300,11211", DefaultInbound: controller.AllUnauthenticated,
		ControllerName: "github.com/gotower/destination", EgressNamespace: "linkerd-egress",
	}
}

// Validate returns an error that names the invalid field, or nil.
func (s Settings) Validate() error {
	switch {
	case !slices.Contains(controller.AccessPolicies(), string(s.DefaultInbound)):
		return fmt.Errorf("default inbound policy %q: must be %s", s.DefaultInbound, strings.Join(controller.AccessPolicies(), ", "))
	// An invalid item is left out of the result, which then has fewer items than the text.
	case s.OpaquePorts != "" && len(parsePorts(s.OpaquePorts)) <= strings.Count(s.OpaquePorts, ","):
		return fmt.Errorf("opaque ports %q: must be ports and ranges such as 25,4000-4100", s.OpaquePorts)
	}
	return nil
}

// The indexes of the stores: which kinds of objects each one holds, and the values to look them
// up by.
const (
	byIP        = "ip"        // Services, Pods and ExternalWorkloads, by their IP addresses
	byService   = "service"   // EndpointSlices, by "namespace/service"
	byParent    = "parent"    // routes, by "kind/namespace/name" of each parent that is a Service or Server
	byReference = "reference" // routes, by the values of byParent and by each backend that is a Service
)

// cluster is a [controller.Source]. It answers from local copies of a Kubernetes cluster's
// objects, which informers keep up to date.
type cluster struct {
	settings Settings
	opaque   portSet
	log      *slog.Logger
	stores   map[string]cache.Indexer // by kind
	links    *links                   // nil in tests and in a linked cluster
}

func newCluster(s Settings, log *slog.Logger, stores map[string]cache.Indexer) *cluster {
	return &cluster{settings: s, opaque: parsePorts(s.OpaquePorts), log: log, stores: stores}
}

// get returns the object with the given name from the store of kind, or nil.
func get[T any](c *cluster, kind, namespace, name string) *T {
	store := c.stores[kind]
	if store == nil { // a linked cluster's store contains only a few kinds
		return nil
	}
	item, _, _ := store.GetByKey(strings.TrimPrefix(namespace+"/"+name, "/")) // nodes are not namespaced
	o, _ := item.(*T)
	return o
}

// list returns the objects of a kind that an index finds under value, oldest first. Objects of
// the same age are sorted by name, so that every replica of the controller returns the same
// order.
func list[T any, P interface {
	*T
	metav1.Object
}](c *cluster, kind, index, value string) []P {
	items, _ := c.stores[kind].ByIndex(index, value)
	objects := make([]P, 0, len(items))
	for _, item := range items {
		if o, ok := item.(P); ok {
			objects = append(objects, o)
		}
	}
	slices.SortFunc(objects, older)
	return objects
}

// older compares two objects by age, oldest first, and then by name.
func older[P metav1.Object](a, b P) int {
	first := a.GetCreationTimestamp()
	second := b.GetCreationTimestamp()
	return cmp.Or(first.Compare(second.Time), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetNamespace(), b.GetNamespace()))
}

// lookup computes one answer for the controller and records in used every object that the answer
// depends on. When one of them changes, the controller asks again.
type lookup struct {
	*cluster

	used map[controller.Object]struct{}
}

func (c *cluster) look() *lookup { return &lookup{c, make(map[controller.Object]struct{})} }

func (l *lookup) use(kind, namespace, name string) {
	l.used[controller.Object{Kind: kind, Namespace: namespace, Name: name}] = struct{}{}
}

func (l *lookup) uses() []controller.Object { return slices.Collect(maps.Keys(l.used)) }

// The kinds of [controller.Object] that an answer can depend on. A change to a route or a
// ServiceProfile counts as a change to its Services.
const (
	usesIP        = "IP"        // the name is an IP address
	usesService   = "Service"   // the Service, its routes and its ServiceProfile
	usesEndpoints = "Endpoints" // the EndpointSlices of the Service with this name
	usesPod       = "Pod"
	usesPolicy    = "Policy" // a namespace's Servers with their policies and routes; the name is empty
	usesExternal  = "ExternalWorkload"
	usesNode      = "Node"
	usesNamespace = "Namespace"
	usesEgress    = "Egress" // a namespace's EgressNetworks with their routes; the name is empty
)

// service returns the Service n, or nil if it does not exist or is an ExternalName.
func (l *lookup) service(n kubeobject.Name) *service {
	// Record the use first: the answer also depends on the absence of the Service.
	l.use(usesService, n.Namespace, n.Name)
	s := get[service](l.cluster, "Service", n.Namespace, n.Name)
	if s == nil || s.external {
		return nil
	}
	return s
}

// parse splits host, which should be the DNS name of a Service or of one of its endpoints. For
// web-0.web.default.svc.cluster.local the hostname is web-0; for a Service it is empty. If host
// is neither, ok is false.
func (c *cluster) parse(host string) (hostname string, service kubeobject.Name, ok bool) {
	// labels is not used unless ok is true.
	rest, ok := strings.CutSuffix(host, ".svc."+c.settings.ClusterDomain)
	labels := strings.Split(rest, ".")
	switch {
	// Two labels are a Service and its namespace. Three begin with the hostname of an endpoint.
	case ok && len(labels) == 2:
		return "", kubeobject.Name{Namespace: labels[1], Name: labels[0]}, true
	case ok && len(labels) == 3:
		return labels[0], kubeobject.Name{Namespace: labels[2], Name: labels[1]}, true
	}
	return "", kubeobject.Name{}, false
}

// dns returns a Service's DNS name, such as web.shop.svc.cluster.local.
func (c *cluster) dns(n kubeobject.Name) string {
	return n.Name + "." + n.Namespace + ".svc." + c.settings.ClusterDomain
}

// identity returns the identity that linkerd issues to a service account.
func (c *cluster) identity(account, namespace string) string {
	return account + "." + namespace + ".serviceaccount.identity." + c.settings.ControlPlane + "." + c.settings.TrustDomain
}

// Destination implements [controller.Source]. It describes host and port as client should see
// them, and returns the objects that the answer depends on. For a host outside the cluster, it
// sets the destination's Absent field. Endpoints are left out unless endpoints is true.
func (c *cluster) Destination(
	client controller.Client, host string, port uint16, endpoints bool,
) (d controller.Destination, uses []controller.Object) {
	l := c.look()
	// A host that is an IP address is never resolved, so it has no endpoints.
	if addr, err := netip.ParseAddr(host); err == nil {
		if d.Profile = l.address(addr, port); d.Profile == nil {
			d.Policy = l.egress(netip.AddrPortFrom(addr, port), client.Namespace)
		}
		return d, l.uses()
	}
	hostname, name, ok := c.parse(host)
	if !ok {
		return controller.Destination{Absent: true}, nil
	}
	s := l.service(name)
	if s == nil {
		return controller.Destination{Absent: true}, l.uses()
	}
	d = controller.Destination{
		Labels:  map[string]string{"namespace": s.Namespace, "service": s.Name},
		Profile: l.profile(s, port),
	}
	// An empty object means that nothing but routes and annotations configures the policy.
	d.Policy = l.policy(c.parentService(s), port, d.Profile.Opaque, client.Namespace, make(object))
	if endpoints {
		d.Endpoints = l.discover(s, port, hostname, l.zoneOf(client.Node))
	}
	return d, l.uses()
}

// address returns an IP address's profile. A Service's cluster IP gets the Service's profile, and
// the address of a pod or ExternalWorkload gets a profile with that single endpoint. For any
// other address, the profile is nil.
func (l *lookup) address(addr netip.Addr, port uint16) *controller.Profile {
	// A Service or pod may get this address later, and the answer then changes.
	l.use(usesIP, "", addr.String())
	// The first of the sorted objects wins. There is usually only one.
	for _, s := range list[service](l.cluster, "Service", byIP, addr.String()) {
		l.use(usesService, s.Namespace, s.Name)
		p := l.profile(s, port)
		p.Name = l.dns(kubeobject.NameOf(s))
		return p
	}
	for _, p := range list[pod](l.cluster, "Pod", byIP, addr.String()) {
		ep := l.endpoint(p, netip.AddrPortFrom(addr, port), "")
		ep.Labels["namespace"] = p.Namespace
		return &controller.Profile{Opaque: l.isOpaque(podOf(p), port), Endpoint: &ep}
	}
	for _, w := range list[resource[externalWorkload]](l.cluster, "ExternalWorkload", byIP, addr.String()) {
		l.use(usesExternal, w.GetNamespace(), w.GetName())
		ep := l.externalEndpoint(w, netip.AddrPortFrom(addr, port))
		ep.Labels["namespace"] = w.GetNamespace()
		return &controller.Profile{Opaque: l.isOpaque(externalOf(w), port), Endpoint: &ep}
	}
	return nil
}

// endpoints returns the endpoints that serve a port of s. EndpointSlices list the pods' port
// numbers by port name. If s does not declare the port, endpoints assumes that the pods listen on
// the same number, as linkerd does. A hostname that is not empty selects the endpoint with that
// name.
func (l *lookup) endpoints(s *service, port uint16, hostname string) []placed {
	l.use(usesEndpoints, s.Namespace, s.Name)
	// index is -1 if the Service does not declare the port.
	index := slices.IndexFunc(s.ports, func(p namedPort) bool { return p.port == port })
	visited := make(map[netip.AddrPort]bool)
	var all []placed
	for _, epSlice := range list[slice](l.cluster, "EndpointSlice", byService, s.Namespace+"/"+s.Name) {
		// target is the pods' port, which may have another number in each slice.
		target := port
		if index >= 0 {
			// A slice names the port as the Service does.
			i := slices.IndexFunc(epSlice.ports, func(p namedPort) bool { return p.name == s.ports[index].name })
			if i < 0 {
				continue
			}
			target = epSlice.ports[i].port
		}
		// A Service with two families has slices for each. Only the first family is used.
		if s.family != "" && s.family != epSlice.family {
			continue
		}
		for _, e := range epSlice.endpoints {
			addr := netip.AddrPortFrom(e.addr, target)
			// A pod may be in several slices. A target of 0 is a port that does not fit.
			if visited[addr] || target == 0 || hostname != "" && hostname != e.hostname {
				continue
			}
			visited[addr] = true
			// An endpoint that belongs to no object has only an address.
			ep := controller.Endpoint{Addr: addr, Labels: make(map[string]string)}
			if e.pod != "" {
				// The pod may change later, for example when it gets a proxy.
				l.use(usesPod, s.Namespace, e.pod)
				if p := get[pod](l.cluster, "Pod", s.Namespace, e.pod); p != nil {
					ep = l.endpoint(p, addr, e.zone)
				}
			} else if e.external != "" {
				if w := l.external(kubeobject.Name{Namespace: s.Namespace, Name: e.external}); w != nil {
					ep = l.externalEndpoint(w, addr)
				}
			}
			if e.zone != "" {
				ep.Labels["zone"] = e.zone
			}
			all = append(all, placed{ep, e.zone, e.hints})
		}
	}
	return all
}

// endpoint describes the pod p at addr. The identity and the protocol are set only if the pod's
// proxy handles connections to this port: the proxy must belong to this control plane, and the
// annotation skip-inbound-ports must not list the port.
func (l *lookup) endpoint(p *pod, addr netip.AddrPort, zone string) controller.Endpoint {
	l.use(usesPod, p.Namespace, p.Name)
	ep := controller.Endpoint{Addr: addr, Labels: map[string]string{
		"pod": p.Name, "serviceaccount": cmp.Or(p.account, "default"),
	}}
	// A pod that owns itself already has the label pod.
	if p.ownerKind != "pod" {
		ep.Labels[p.ownerKind] = p.ownerName
	}
	for label, value := range map[string]string{
		"pod_template_hash": p.Labels[templateHashLabel], "control_plane_ns": p.Labels[controlPlaneLabel], "zone": zone,
	} {
		if value != "" {
			ep.Labels[label] = value
		}
	}
	// Without a proxy that handles the port, the client must connect in cleartext.
	if p.proxy == 0 || p.Labels[controlPlaneLabel] != l.settings.ControlPlane || parsePorts(p.Annotations[skipInbound]).has(addr.Port()) {
		return ep
	}
	ep.Identity = l.identity(cmp.Or(p.account, "default"), p.Namespace)
	// All proxies accept HTTP/2, whatever the application speaks.
	ep.Protocol = controller.H2
	if l.isOpaque(podOf(p), addr.Port()) {
		// The client must not detect the protocol, and names the port in a transport header.
		ep.Protocol = controller.Opaque
		ep.InboundPort = p.proxy
	}
	return ep
}

// ports returns the opaque ports that a Service's or pod's annotations list. Without the
// annotation opaque-ports, the settings' OpaquePorts apply.
func (c *cluster) ports(annotations map[string]string) portSet {
	// Even an empty annotation replaces the default.
	if text, ok := annotations[opaquePorts]; ok {
		return parsePorts(text)
	}
	return c.opaque
}

// servicePorts returns the opaque ports of s. A Service without the annotation inherits the one
// on its namespace.
func (l *lookup) servicePorts(s *service) portSet {
	if _, ok := s.Annotations[opaquePorts]; ok {
		return l.ports(s.Annotations)
	}
	// The answer also depends on the namespace's annotation, even if it is missing now.
	l.use(usesNamespace, "", s.Namespace)
	if n := get[namespace](l.cluster, "Namespace", "", s.Namespace); n != nil {
		return l.ports(n.Annotations)
	}
	return l.opaque
}

// isOpaque reports whether connections to a port of w should be forwarded as bytes. Ports are
// opaque if w's annotation opaque-ports (or else the settings' OpaquePorts) lists them, or if
// their Server sets proxyProtocol to opaque.
func (l *lookup) isOpaque(w workload, port uint16) bool {
	if l.ports(w.annotations).has(port) {
		return true
	}
	s := l.serverOf(w, port)
	return s != nil && s.spec.ProxyProtocol == "opaque"
}
