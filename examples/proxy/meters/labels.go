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

// Direction tells whether connections or requests are inbound, to the application, or outbound,
// from the application.
type Direction string

// Directions of connections and requests.
const (
	Inbound  Direction = "inbound"
	Outbound Direction = "outbound"
)

// Labels are a series's labels by name. Characters in a name that Prometheus does not allow become
// "_". An empty value is the same as a missing label.
type Labels map[string]string

// With returns the labels in l and more. If a label occurs several times, the last value wins.
func (l Labels) With(more ...Labels) Labels {
	// Make the map large enough for everything, because this runs for each new series.
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

// Prefixed returns labels with prefix and "_" before each name. The prefix is "dst" for an
// endpoint's labels, and "rt" for a route's.
func Prefixed(prefix string, labels map[string]string) Labels {
	prefixed := make(Labels, len(labels))
	for name, value := range labels {
		prefixed[prefix+"_"+name] = value
	}
	return prefixed
}

// Target returns addr's labels target_addr, target_ip and target_port, or no labels if addr is not
// valid.
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

// ServerTLS returns the labels for a TLS connection to a server that has proven the identity id.
func ServerTLS(id string) Labels { return Labels{"tls": "true", "server_id": id} }

// ClientTLS returns the labels for a TLS connection from a client that has proven the identity id,
// which is "" if it has none.
func ClientTLS(id string) Labels { return Labels{"tls": "true", "client_id": id} }

// NoTLS returns the labels for a cleartext connection. reason tells why it does not use TLS, such
// as "disabled", "loopback", "not_provided_by_service_discovery" or "no_tls_from_remote".
func NoTLS(reason string) Labels {
	// "disabled" is a choice of the user, and not an identity that is missing.
	if reason == "disabled" {
		return Labels{"tls": reason}
	}
	return Labels{"tls": "no_identity", "no_tls_reason": reason}
}

// clean returns l with names that Prometheus allows and with values in valid UTF-8.
func (l Labels) clean() Labels {
	cleaned := make(Labels, len(l))
	// Two names may become equal when they are cleaned. Sorting makes the same one win each time.
	for _, name := range slices.Sorted(maps.Keys(l)) {
		cleaned[cleanName(name)] = strings.ToValidUTF8(l[name], "\uFFFD")
	}
	return cleaned
}

// cleanName replaces characters in name that Prometheus does not allow by "_". A name that is still
// not allowed, or reserved, gets the prefix "l_".
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
		return "l_" + name // names must not begin with a digit, and Prometheus reserves the others
	}
	return name
}

// key returns a string that identifies the labels after [Labels.clean]. Keys are equal only for
// equal labels.
func (l Labels) key() string {
	names := make([]string, 0, len(l))
	size := 0
	isClean := true
	for name, value := range l {
		names = append(names, name)
		// The separator is a zero byte, and 255 stands for the digits of a value's length.
		size += len(name) + len(value) + len("\x00255\x00")
		isClean = isClean && cleanName(name) == name && utf8.ValidString(value)
	}
	// Clean only if necessary: it copies the labels.
	if !isClean {
		return l.clean().key()
	}
	slices.Sort(names)
	b := make([]byte, 0, size)
	for _, name := range names {
		b = append(append(b, name...), 0)
		b = append(strconv.AppendInt(b, int64(len(l[name])), 10), 0) // with its length, because a value may contain any byte
		b = append(b, l[name]...)
	}
	return string(b)
}

// labelPairs converts a result of Labels.key for Prometheus.
func labelPairs(key string) []*dto.LabelPair {
	pairs := make([]*dto.LabelPair, 0, strings.Count(key, "\x00")/2)
	for key != "" {
		// The format is name, zero byte, length of the value, zero byte, value.
		name, rest, _ := strings.Cut(key, "\x00")
		length, rest, _ := strings.Cut(rest, "\x00")
		n, _ := strconv.Atoi(length)
		value := rest[:n]
		pairs = append(pairs, &dto.LabelPair{Name: &name, Value: &value})
		key = rest[n:]
	}
	return pairs
}

// labelsOf returns the labels from which Labels.key made key.
func labelsOf(key string) Labels {
	l := Labels{}
	for _, p := range labelPairs(key) {
		l[p.GetName()] = p.GetValue()
	}
	return l
}

// meta returns the labels that identify the resource behind authority, a name and port. They begin
// with prefix, which is "parent" for the requested destination and "backend" for the target that
// serves the request.
//
// A name of the form name.namespace.svc is a Service, and so is name.namespace followed by one of
// Config.ServiceSuffixes. Any other authority has the kind "default" and its host as the name.
func (m *Meters) meta(prefix, authority string) Labels {
	host, port, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	name := host
	kind := "default"
	var group, namespace string
	// An IPv4 address has dots as well, but is no Service.
	_, notAddr := netip.ParseAddr(host)
	// SplitN leaves the whole domain in the third part.
	if parts := strings.SplitN(host, ".", 3); notAddr != nil && len(parts) > 2 && m.isCluster(parts[2]) {
		name = parts[0]
		namespace = parts[1]
		kind = "Service"
		group = "core"
	}
	return Prefixed(prefix, Labels{
		"group": group, "kind": kind, "namespace": namespace, "name": name, "port": port, "section_name": "",
	})
}

// routeMeta returns the labels route_* that identify a route. If labels contain route_kind, the
// route belongs to a policy, and they are returned. Otherwise it belongs to a profile. An empty
// name means the default route.
func routeMeta(name string, labels Labels) Labels {
	if labels["route_kind"] != "" {
		return labels
	}
	kind := "profile"
	if name == "" {
		kind = "default"
		name = "default"
	}
	return Labels{"route_group": "", "route_kind": kind, "route_namespace": "", "route_name": name}
}

// isCluster reports whether domain is "svc" or one of Config.ServiceSuffixes. It ignores case and a
// final dot.
func (m *Meters) isCluster(domain string) bool {
	domain = strings.TrimSuffix(domain, ".")
	return strings.EqualFold(domain, "svc") ||
		slices.ContainsFunc(m.services, func(s string) bool { return strings.EqualFold(domain, s) })
}
