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

// Settings configure how a [Watcher] translates the objects of a cluster. [DefaultSettings]
// returns the defaults of linkerd's Helm chart.
type Settings struct {
	ClusterDomain   string                  // end of the DNS names of Services
	TrustDomain     string                  // end of the identities of pods
	ControlPlane    string                  // the namespace of the control plane, which is part of identities
	OpaquePorts     string                  // such as "25,4000-4100"; an annotation overrides it
	DefaultInbound  controller.AccessPolicy // for ports without a Server; an annotation overrides it
	ClusterNetworks []netip.Prefix          // empty means the default networks of linkerd
	ControllerName  string                  // name of this controller in the status of routes
}

// DefaultSettings returns the defaults of linkerd's Helm chart, with the name of this
// controller as ControllerName.
func DefaultSettings() Settings {
	return Settings{
		ClusterDomain: "cluster.local", TrustDomain: "cluster.local", ControlPlane: "linkerd",
		OpaquePorts: "25,587,3306,4444,5432,6379,9300,11211", DefaultInbound: controller.AllUnauthenticated,
		ControllerName: "github.com/gotower/destination",
	}
}

// Validate returns an error that names the invalid field, or nil.
func (s Settings) Validate() error {
	switch {
	case !slices.Contains(controller.AccessPolicies(), string(s.DefaultInbound)):
		return fmt.Errorf("default inbound policy %q: must be %s", s.DefaultInbound, strings.Join(controller.AccessPolicies(), ", "))
	case s.OpaquePorts != "" && len(parsePorts(s.OpaquePorts)) <= strings.Count(s.OpaquePorts, ","):
		return fmt.Errorf("opaque ports %q: must be ports and ranges such as 25,4000-4100", s.OpaquePorts)
	}
	return nil
}

// The names of the indexes of the local copies of objects. Each comment states the kinds
// of objects in the index, and the values by which the index finds an object.
const (
	byIP        = "ip"        // Services and Pods, by their IP addresses
	byService   = "service"   // EndpointSlices, by "namespace/service"
	byParent    = "parent"    // routes, by "kind/namespace/name" of each parent that is a Service or Server
	byReference = "reference" // routes, by the values of byParent and of each backend that is a Service
)

// cluster is a [controller.Source]. It answers from local copies of the objects of a
// Kubernetes cluster, which informers keep up to date.
type cluster struct {
	settings Settings
	opaque   portSet
	log      *slog.Logger
	stores   map[string]cache.Indexer // by kind
}

func newCluster(s Settings, log *slog.Logger, stores map[string]cache.Indexer) *cluster {
	return &cluster{settings: s, opaque: parsePorts(s.OpaquePorts), log: log, stores: stores}
}

// get returns the object with the given name from the store of kind, or nil.
func get[T any](c *cluster, kind, namespace, name string) *T {
	item, _, _ := c.stores[kind].GetByKey(namespace + "/" + name)
	o, _ := item.(*T)
	return o
}

// list returns the objects of the given kind that have the given value in an index of the
// cluster. They are sorted by age, the oldest first, and then by name.
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
	slices.SortFunc(objects, func(a, b P) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects
}

// lookup makes one answer for the controller from the objects of the cluster. It records the
// objects on which the answer depends in its field used.
type lookup struct {
	*cluster

	used map[controller.Object]struct{}
}

func (c *cluster) look() *lookup { return &lookup{c, make(map[controller.Object]struct{})} }

func (l *lookup) use(kind, namespace, name string) {
	l.used[controller.Object{Kind: kind, Namespace: namespace, Name: name}] = struct{}{}
}

func (l *lookup) uses() []controller.Object { return slices.Collect(maps.Keys(l.used)) }

// The kinds of [controller.Object] on which an answer can depend. A change of a route or a
// ServiceProfile counts as a change of its Services.
const (
	usesIP        = "IP"        // the name is an IP address
	usesService   = "Service"   // the Service, its routes and its ServiceProfile
	usesEndpoints = "Endpoints" // the EndpointSlices of the Service with the name
	usesPod       = "Pod"
	usesPolicy    = "Policy" // the Servers of a namespace with their policies and routes; the name is empty
)

// service returns a Service, or nil if it does not exist or is of the type ExternalName.
func (l *lookup) service(n kubeobject.Name) *service {
	l.use(usesService, n.Namespace, n.Name)
	s := get[service](l.cluster, "Service", n.Namespace, n.Name)
	if s == nil || s.external {
		return nil
	}
	return s
}

// parse splits host, the DNS name of a Service or of one of its endpoints. For the endpoint
// web-0.web.default.svc.cluster.local, hostname is web-0. For a Service, hostname is "". ok
// is false if host is not such a name.
func (c *cluster) parse(host string) (hostname string, service kubeobject.Name, ok bool) {
	rest, ok := strings.CutSuffix(host, ".svc."+c.settings.ClusterDomain)
	labels := strings.Split(rest, ".")
	switch {
	case ok && len(labels) == 2:
		return "", kubeobject.Name{Namespace: labels[1], Name: labels[0]}, true
	case ok && len(labels) == 3:
		return labels[0], kubeobject.Name{Namespace: labels[2], Name: labels[1]}, true
	}
	return "", kubeobject.Name{}, false
}

// dns returns the DNS name of a Service.
func (c *cluster) dns(n kubeobject.Name) string {
	return n.Name + "." + n.Namespace + ".svc." + c.settings.ClusterDomain
}

// identity returns the identity of a service account.
func (c *cluster) identity(account, namespace string) string {
	return account + "." + namespace + ".serviceaccount.identity." + c.settings.ControlPlane + "." + c.settings.TrustDomain
}

// Destination is part of [controller.Source]. It returns the destination with the given
// host and port, and the objects from which it was made. If the host is not in the cluster,
// the field Absent of the destination is true. If endpoints is false, the destination has
// no endpoints.
func (c *cluster) Destination(host string, port uint16, endpoints bool) (controller.Destination, []controller.Object) {
	l := c.look()
	if addr, err := netip.ParseAddr(host); err == nil {
		return controller.Destination{Profile: l.address(addr, port)}, l.uses()
	}
	hostname, name, ok := c.parse(host)
	if !ok {
		return controller.Destination{Absent: true}, nil
	}
	s := l.service(name)
	if s == nil {
		return controller.Destination{Absent: true}, l.uses()
	}
	d := controller.Destination{
		Labels:  map[string]string{"namespace": s.Namespace, "service": s.Name},
		Profile: l.profile(s, port),
	}
	d.Policy = l.policy(s, port, d.Profile.Opaque)
	if endpoints {
		d.Endpoints = l.endpoints(s, port, hostname)
	}
	return d, l.uses()
}

// address returns the profile of an IP address. For the cluster IP of a Service, it is the
// profile of the Service. For the address of a pod, it is a profile with the pod as its
// single endpoint. For any other address, it is nil.
func (l *lookup) address(addr netip.Addr, port uint16) *controller.Profile {
	l.use(usesIP, "", addr.String())
	for _, s := range list[service](l.cluster, "Service", byIP, addr.String()) {
		l.use(usesService, s.Namespace, s.Name)
		p := l.profile(s, port)
		p.Name = l.dns(kubeobject.NameOf(s))
		return p
	}
	for _, p := range list[pod](l.cluster, "Pod", byIP, addr.String()) {
		ep := l.endpoint(p, netip.AddrPortFrom(addr, port), "")
		ep.Labels["namespace"] = p.Namespace
		return &controller.Profile{Opaque: l.isOpaque(p, port), Endpoint: &ep}
	}
	return nil
}

// endpoints returns the endpoints of a port of s. The port number of the pods is in the
// EndpointSlices of s, under the name of the port. If s does not have the port, the pods
// use the same port number, as in linkerd. If hostname is not empty, endpoints returns only
// the endpoint with this hostname.
func (l *lookup) endpoints(s *service, port uint16, hostname string) []controller.Endpoint {
	l.use(usesEndpoints, s.Namespace, s.Name)
	at := slices.IndexFunc(s.ports, func(p namedPort) bool { return p.port == port })
	seen := make(map[netip.AddrPort]bool)
	var all []controller.Endpoint
	for _, from := range list[slice](l.cluster, "EndpointSlice", byService, s.Namespace+"/"+s.Name) {
		target := port
		if at >= 0 {
			i := slices.IndexFunc(from.ports, func(p namedPort) bool { return p.name == s.ports[at].name })
			if i < 0 {
				continue
			}
			target = from.ports[i].port
		}
		if s.family != "" && s.family != from.family {
			continue
		}
		for _, e := range from.endpoints {
			addr := netip.AddrPortFrom(e.addr, target)
			if seen[addr] || target == 0 || hostname != "" && hostname != e.hostname {
				continue
			}
			seen[addr] = true
			ep := controller.Endpoint{Addr: addr, Labels: make(map[string]string)}
			if e.pod != "" {
				l.use(usesPod, s.Namespace, e.pod)
				if p := get[pod](l.cluster, "Pod", s.Namespace, e.pod); p != nil {
					ep = l.endpoint(p, addr, e.zone)
				}
			}
			if e.zone != "" {
				ep.Labels["zone"] = e.zone
			}
			all = append(all, ep)
		}
	}
	return all
}

// endpoint returns the endpoint of the pod p at addr, in the given zone. It sets the
// identity and the protocol only if the proxy of the pod receives connections to the port
// of addr. This is the case if the proxy belongs to this control plane, and the annotation
// skip-inbound-ports does not contain the port.
func (l *lookup) endpoint(p *pod, addr netip.AddrPort, zone string) controller.Endpoint {
	l.use(usesPod, p.Namespace, p.Name)
	ep := controller.Endpoint{Addr: addr, Labels: map[string]string{
		"pod": p.Name, "serviceaccount": cmp.Or(p.account, "default"),
	}}
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
	if p.proxy == 0 || p.Labels[controlPlaneLabel] != l.settings.ControlPlane || parsePorts(p.Annotations[skipInbound]).has(addr.Port()) {
		return ep
	}
	ep.Identity, ep.Protocol = l.identity(cmp.Or(p.account, "default"), p.Namespace), controller.H2
	if l.isOpaque(p, addr.Port()) {
		ep.Protocol, ep.InboundPort = controller.Opaque, p.proxy
	}
	return ep
}

// ports returns the opaque ports of a Service or pod with the given annotations. Without
// the annotation opaque-ports, they are the OpaquePorts of the settings.
func (c *cluster) ports(annotations map[string]string) portSet {
	if text, ok := annotations[opaquePorts]; ok {
		return parsePorts(text)
	}
	return c.opaque
}

// isOpaque reports whether a port of the pod p is opaque. A port is opaque if the
// annotation opaque-ports of p contains it. Without the annotation, OpaquePorts of the
// settings applies. A port is also opaque if its Server has the proxyProtocol opaque.
func (l *lookup) isOpaque(p *pod, port uint16) bool {
	if l.ports(p.Annotations).has(port) {
		return true
	}
	s := l.serverOf(p, port)
	return s != nil && s.spec.ProxyProtocol == "opaque"
}
