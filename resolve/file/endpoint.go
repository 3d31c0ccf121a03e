package file

import (
	"maps"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/resolve"
)

// endpoints reads the list of a target. An address that is given twice would
// be one endpoint, and nobody could say which.
func (r *reader) endpoints(n *yaml.Node) []resolve.Endpoint {
	if yamlfile.IsNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.failf(n.Line, "endpoints: want a list, not %s", yamlfile.Kind(n))
		return nil
	}
	list := make([]resolve.Endpoint, 0, len(n.Content))
	first := make(map[netip.AddrPort]int, len(n.Content))
	for _, item := range n.Content {
		e, line := r.endpoint(item)
		if !e.Addr.IsValid() {
			continue // which is a mistake, and noted
		}
		if was, twice := first[e.Addr]; twice {
			r.failf(line, "addr %s is given twice, first in line %d: take one out", e.Addr, was)
			continue
		}
		first[e.Addr] = line
		list = append(list, e)
	}
	return list
}

// endpoint reads one item, and returns the line of its address.
func (r *reader) endpoint(n *yaml.Node) (e resolve.Endpoint, line int) {
	if yamlfile.IsNull(n) {
		r.failf(n.Line, "an empty item in the list of endpoints: take it out, or write addr: 10.0.0.1:80")
		return e, n.Line
	}
	identityLine := n.Line
	r.mapping(n, "an endpoint", func(key, value *yaml.Node) {
		switch key.Value {
		case "labels":
			e.Labels = r.labels(value)
			return
		case "addr":
			line = value.Line
		case "identity":
			identityLine = value.Line
		}
		set := setter(&e, key.Value)
		if set == nil {
			r.failf(key.Line, "unknown field %q: an endpoint has %s", key.Value, endpointFields)
			return
		}
		if text, ok := r.text(key.Value, value); ok {
			if err := set(text); err != nil {
				r.failf(value.Line, "%s %q: %v", key.Value, text, err)
			}
		}
	})
	if n.Kind == yaml.MappingNode && line == 0 {
		r.failf(n.Line, "the endpoint has no addr: write addr: 10.0.0.1:80")
	}
	r.defaultServerName(&e, identityLine)
	return e, line
}

// defaultServerName takes the identity for the TLS server name if there is no other:
// without one, the endpoint would be spoken to in cleartext.
func (r *reader) defaultServerName(e *resolve.Endpoint, line int) {
	switch {
	case e.ServerName != "" || e.Identity == "":
	case strings.Contains(e.Identity, "://"):
		r.failf(line, "identity %q is a URI, which is no server name: write server_name too", e.Identity)
	default:
		e.ServerName = e.Identity
	}
}

const endpointFields = "addr, weight, labels, protocol, identity, server_name, authority, opaque_port, ping_interval, ping_timeout"

// setter returns what reads a field into e, or nil if there is no such field.
func setter(e *resolve.Endpoint, field string) func(text string) error {
	switch field {
	case "addr":
		return into(&e.Addr, parseAddr)
	case "weight":
		return into(&e.Weight, parseWeight)
	case "protocol":
		return into(&e.Protocol, parseProtocol)
	case "identity":
		return into(&e.Identity, parseWord)
	case "server_name":
		return into(&e.ServerName, parseWord)
	case "authority":
		return into(&e.Authority, parseAuthority)
	case "opaque_port":
		return into(&e.OpaquePort, parsePort)
	case "ping_interval":
		return into(&e.PingInterval, parseDuration)
	case "ping_timeout":
		return into(&e.PingTimeout, parseDuration)
	}
	return nil
}

func into[T any](field *T, parse func(string) (T, error)) func(string) error {
	return func(text string) (err error) {
		*field, err = parse(text)
		return err
	}
}

// over returns the outer labels with the inner ones over them.
func over(outer, inner map[string]string) map[string]string {
	if len(outer) == 0 {
		return inner
	}
	if len(inner) == 0 {
		return outer
	}
	both := maps.Clone(outer)
	maps.Copy(both, inner)
	return both
}
