package file

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/resolve"
)

// endpoints parses the list of a target. A duplicate address is a mistake, because an
// address identifies an endpoint.
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
			continue // the mistake has been added
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

// endpoint parses one item. It also returns the line of its address.
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

// defaultServerName sets a missing TLS server name to the identity, because without a
// server name the connection would be cleartext.
func (r *reader) defaultServerName(e *resolve.Endpoint, line int) {
	switch {
	case e.ServerName != "" || e.Identity == "":
	case strings.Contains(e.Identity, "://"):
		r.failf(line, "identity %q is a URI: write server_name too", e.Identity)
	default:
		e.ServerName = e.Identity
	}
}

const endpointFields = "addr, weight, labels, protocol, identity, server_name, authority, opaque_port, ping_interval, ping_timeout"

// setter returns a function that parses the field into e, or nil for an unknown field.
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

// over returns the union of two sets of labels. Those of inner override those of outer.
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

// parseAddr parses an address with a port. It converts IPv4-mapped IPv6 addresses to IPv4.
func parseAddr(text string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(text)
	_, bare := netip.ParseAddr(text)
	switch {
	case bare == nil:
		return netip.AddrPort{}, errors.New("no port: write 10.0.0.1:80 or [fd00::1]:80")
	case err != nil:
		return netip.AddrPort{}, errors.New("not an IP address with a port: write 10.0.0.1:80 or [fd00::1]:80")
	case addr.Port() == 0:
		return netip.AddrPort{}, errors.New("port 0 cannot be connected to: write 1 to 65535")
	case addr.Addr().Unmap().WithZone("").IsUnspecified():
		return netip.AddrPort{}, errors.New("the unspecified address is for listening: write the address to connect to")
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), nil
}

func parseWeight(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil:
		return 0, errors.New("write a whole number from 1 to 4294967295; 10000 is one unit")
	case n == 0:
		return 0, errors.New("leave the weight out for the usual share, or the endpoint out for none")
	}
	return uint32(n), nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("not a port: write 1 to 65535")
	}
	return uint16(n), nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("write a duration such as 300ms or 10s")
	}
	return d, nil
}

func parseProtocol(text string) (p resolve.Protocol, err error) {
	if p.UnmarshalText([]byte(text)) != nil {
		err = errors.New("write h2, opaque or unknown")
	}
	return p, err
}

// parseWord rejects white space and control characters. It allows everything else,
// because names in certificates have many forms.
func parseWord(text string) (string, error) {
	invalid := func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }
	if strings.ContainsFunc(text, invalid) {
		return "", errors.New("white space or a control character in it: take it out")
	}
	return text, nil
}

// parseAuthority accepts host, host:port and [address]:port.
func parseAuthority(text string) (string, error) {
	if strings.ContainsAny(text, "/@?#") {
		return "", errors.New("write host:port alone, without a scheme, user or path")
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = parsePort(port)
	}
	_, bare := netip.ParseAddr(strings.Trim(text, "[]"))
	if strings.Contains(text, ":") && bare != nil && (err != nil || host == "") {
		return "", errors.New("write host:port, with a port from 1 to 65535")
	}
	return parseWord(text)
}
