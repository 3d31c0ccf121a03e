package meters

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// meta are the labels by which linkerd's policies call a resource: of the
// destination that was asked for (parent), or of the one that serves (backend).
// That is the Service that authority names as Kubernetes does, name.namespace.svc
// or, below one of Config.ServiceSuffixes, name.namespace.svc.cluster.local, and a
// port; any other has the kind "default", and its host is the name: another domain
// is somebody else's.
func (m *Meters) meta(prefix, authority string) Labels {
	host, port, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	group, kind, namespace, name := "", "default", "", host
	_, notAddr := netip.ParseAddr(host)
	if parts := strings.SplitN(host, ".", 3); notAddr != nil && len(parts) > 2 && m.isCluster(parts[2]) {
		group, kind, namespace, name = "core", "Service", parts[1], parts[0]
	}
	return Prefixed(prefix, Labels{
		"group": group, "kind": kind, "namespace": namespace, "name": name, "port": port, "section_name": "",
	})
}

// routeMeta are those of a route of a profile; the one without a name is the
// default route.
func routeMeta(name string) Labels {
	kind := "profile"
	if name == "" {
		kind, name = "default", "default"
	}
	return Labels{"route_group": "", "route_kind": kind, "route_namespace": "", "route_name": name}
}

// isCluster reports whether domain is that of the cluster's Services.
func (m *Meters) isCluster(domain string) bool {
	domain = strings.TrimSuffix(domain, ".")
	return strings.EqualFold(domain, "svc") ||
		slices.ContainsFunc(m.services, func(s string) bool { return strings.EqualFold(domain, s) })
}
