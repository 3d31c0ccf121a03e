package meters

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
)

// Direction is the direction of a connection or request: inbound to the application, or
// outbound from the application.
type Direction string

// The directions of requests and connections.
const (
	Inbound  Direction = "inbound"
	Outbound Direction = "outbound"
)

// Labels are the labels of a series by name. A character in a name that Prometheus does not
// allow becomes "_". A label with an empty value means the same as a missing label.
type Labels map[string]string

// With returns the labels of l and of all maps in more. If several maps have a label, the
// value in the last map applies.
func (l Labels) With(more ...Labels) Labels {
	n := len(l)
	for _, m := range more {
		n += len(m)
	}
	all := make(Labels, n)
	maps.Copy(all, l)
	for _, m := range more {
		maps.Copy(all, m)
	}
	return all
}

// Prefixed returns labels with the prefix and "_" before each name. The prefix is "dst" for
// the labels of an endpoint and "rt" for those of a route.
func Prefixed(prefix string, labels map[string]string) Labels {
	prefixed := make(Labels, len(labels))
	for name, value := range labels {
		prefixed[prefix+"_"+name] = value
	}
	return prefixed
}

// Target returns the labels target_addr, target_ip and target_port of addr. It returns no
// labels if addr is not valid.
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

// ServerTLS returns the labels of a TLS connection to a server that has proven the identity
// id.
func ServerTLS(id string) Labels { return Labels{"tls": "true", "server_id": id} }

// ClientTLS returns the labels of a TLS connection from a client that has proven the
// identity id. id is "" if the client has no identity.
func ClientTLS(id string) Labels { return Labels{"tls": "true", "client_id": id} }

// NoTLS returns the labels of a cleartext connection. reason specifies why the connection
// does not use TLS, such as "disabled", "loopback", "not_provided_by_service_discovery" or
// "no_tls_from_remote".
func NoTLS(reason string) Labels {
	if reason == "disabled" {
		return Labels{"tls": reason}
	}
	return Labels{"tls": "no_identity", "no_tls_reason": reason}
}

// clean returns l with names that Prometheus allows, and with values that are valid UTF-8.
func (l Labels) clean() Labels {
	cleaned := make(Labels, len(l))
	for _, name := range slices.Sorted(maps.Keys(l)) {
		cleaned[cleanName(name)] = strings.ToValidUTF8(l[name], "\uFFFD")
	}
	return cleaned
}

// cleanName returns name with "_" in place of each character that Prometheus does not
// allow. A name that is still not allowed, or is reserved, gets the prefix "l_".
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

// key returns a string that identifies the labels after [Labels.clean]. Equal labels have
// equal keys, and different labels have different keys.
func (l Labels) key() string {
	names := make([]string, 0, len(l))
	size, isClean := 0, true
	for name, value := range l {
		names = append(names, name)
		size += len(name) + len(value) + len("\x00255\x00")
		isClean = isClean && cleanName(name) == name && utf8.ValidString(value)
	}
	if !isClean {
		return l.clean().key()
	}
	slices.Sort(names)
	b := make([]byte, 0, size)
	for _, name := range names {
		b = append(append(b, name...), 0)
		b = append(strconv.AppendInt(b, int64(len(l[name])), 10), 0) // a value may hold anything
		b = append(b, l[name]...)
	}
	return string(b)
}

// labelPairs returns the labels of a series for Prometheus. key is the result of Labels.key.
func labelPairs(key string) []*dto.LabelPair {
	pairs := make([]*dto.LabelPair, 0, strings.Count(key, "\x00")/2)
	for key != "" {
		name, rest, _ := strings.Cut(key, "\x00")
		length, rest, _ := strings.Cut(rest, "\x00")
		n, _ := strconv.Atoi(length)
		value := rest[:n]
		pairs, key = append(pairs, &dto.LabelPair{Name: &name, Value: &value}), rest[n:]
	}
	return pairs
}

// labelsOf returns the labels of a series. key is the result of Labels.key.
func labelsOf(key string) Labels {
	l := Labels{}
	for _, p := range labelPairs(key) {
		l[p.GetName()] = p.GetValue()
	}
	return l
}

// meta returns the labels that identify the resource with the given authority, which is its
// name and port. The names of the labels are those of linkerd's proxy, and begin with
// prefix. prefix is "parent" for the requested destination, and "backend" for the target
// that serves the request.
//
// A name of the form name.namespace.svc is a Service, and so is name.namespace followed by
// one of Config.ServiceSuffixes. Any other authority has the kind "default" and its host as
// name.
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

// routeMeta returns the labels route_* that identify a route. If labels contain
// route_kind, the route belongs to a policy, and the result is labels itself. Otherwise
// the route belongs to a profile and has the given name. An empty name means the default
// route.
func routeMeta(name string, labels Labels) Labels {
	if labels["route_kind"] != "" {
		return labels
	}
	kind := "profile"
	if name == "" {
		kind, name = "default", "default"
	}
	return Labels{"route_group": "", "route_kind": kind, "route_namespace": "", "route_name": name}
}

// isCluster reports whether domain is "svc" or one of Config.ServiceSuffixes. Case and a
// final dot are ignored.
func (m *Meters) isCluster(domain string) bool {
	domain = strings.TrimSuffix(domain, ".")
	return strings.EqualFold(domain, "svc") ||
		slices.ContainsFunc(m.services, func(s string) bool { return strings.EqualFold(domain, s) })
}
