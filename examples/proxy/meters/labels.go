package meters

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Direction is the side of the proxy that accepted a request or connection.
type Direction string

// The directions.
const (
	Inbound  Direction = "inbound"
	Outbound Direction = "outbound"
)

// Labels are the labels of a series. Characters that are not allowed in a name become
// "_". Values are escaped when they are shown. For Prometheus a label with an empty value
// is the same as no label.
type Labels map[string]string

// With returns l and more. For a name in both, it has the value of more.
func (l Labels) With(more Labels) Labels {
	all := make(Labels, len(l)+len(more))
	maps.Copy(all, l)
	maps.Copy(all, more)
	return all
}

// Prefixed returns labels with prefix and "_" before their names: "dst" for
// those of an endpoint, "rt" for those of a route.
func Prefixed(prefix string, labels map[string]string) Labels {
	prefixed := make(Labels, len(labels))
	for name, value := range labels {
		prefixed[prefix+"_"+name] = value
	}
	return prefixed
}

// Target returns target_addr, target_ip and target_port.
func Target(addr netip.AddrPort) Labels {
	if !addr.IsValid() {
		return Labels{}
	}
	return Labels{
		"target_addr": addr.String(),
		"target_ip":   addr.Addr().String(),
		"target_port": strconv.Itoa(int(addr.Port())),
	}
}

// ServerTLS returns the labels of a connection to a server with the proven identity id.
func ServerTLS(id string) Labels { return Labels{"tls": "true", "server_id": id} }

// ClientTLS returns the labels of a connection from a client with the proven identity id;
// an empty id means TLS without an identity.
func ClientTLS(id string) Labels { return Labels{"tls": "true", "client_id": id} }

// NoTLS returns the labels of a cleartext connection, with the reason: "disabled",
// "loopback", "not_provided_by_service_discovery", "no_tls_from_remote", ….
func NoTLS(why string) Labels {
	if why == "disabled" {
		return Labels{"tls": why}
	}
	return Labels{"tls": "no_identity", "no_tls_reason": why}
}

// clean returns labels with valid names and values.
func (l Labels) clean() Labels {
	cleaned := make(Labels, len(l))
	for _, name := range slices.Sorted(maps.Keys(l)) {
		cleaned[cleanName(name)] = strings.ToValidUTF8(l[name], "\uFFFD")
	}
	return cleaned
}

func cleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name)
	switch {
	case name == "":
		return "_"
	case '0' <= name[0] && name[0] <= '9', strings.HasPrefix(name, "__"), name == "le":
		return "l_" + name // the first is not a valid name, Prometheus reserves the others
	}
	return name
}

// key returns a string that is equal for equal labels only.
func (l Labels) key() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(l)) {
		b.WriteString(name)
		b.WriteByte(0)
		b.WriteString(strconv.Itoa(len(l[name]))) // a value may hold anything
		b.WriteByte(0)
		b.WriteString(l[name])
	}
	return b.String()
}

// meta returns the labels of a resource as in linkerd's policies: of the requested
// destination (parent), or of the one that serves (backend). The resource is a Service if
// authority is name.namespace.svc, or name.namespace.svc.cluster.local with one of
// Config.ServiceSuffixes, and a port. Any other authority has the kind "default", and its
// host is the name.
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

// routeMeta returns the labels of a route of a profile. The route without a name is the
// default route.
func routeMeta(name string) Labels {
	kind := "profile"
	if name == "" {
		kind, name = "default", "default"
	}
	return Labels{"route_group": "", "route_kind": kind, "route_namespace": "", "route_name": name}
}

// isCluster reports whether domain contains the cluster's Services.
func (m *Meters) isCluster(domain string) bool {
	domain = strings.TrimSuffix(domain, ".")
	return strings.EqualFold(domain, "svc") ||
		slices.ContainsFunc(m.services, func(s string) bool { return strings.EqualFold(domain, s) })
}
