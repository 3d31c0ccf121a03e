package file

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/resolve"
)

// readEndpoints parses a target's list of endpoints. It reports a duplicate address as a mistake,
// because an address identifies an endpoint. It also reports different weights for one locality.
func readEndpoints(v value) []resolve.Endpoint {
	items := v.Members("an empty item in the list of endpoints: take it out, or write addr: 10.0.0.1:80")
	list := make([]resolve.Endpoint, 0, len(items))
	// The line in which each address was given first.
	first := make(map[netip.AddrPort]int, len(items))
	for _, item := range items {
		e := readEndpoint(item)
		if !e.Addr.IsValid() {
			continue // the mistake has been added
		}
		addr, _ := item.Field("addr")
		if line, twice := first[e.Addr]; twice {
			addr.Failf("given twice, first in line %d: take one out", line)
			continue
		}
		first[e.Addr] = addr.Node.Line
		// A locality's weight is written at each of its endpoints, so that two endpoints can contradict
		// each other.
		inGroup := func(o resolve.Endpoint) bool { return o.Priority == e.Priority && o.Locality == e.Locality }
		if i := slices.IndexFunc(list, inGroup); i >= 0 && e.Locality != "" && list[i].LocalityWeight != e.LocalityWeight {
			item.Failf("locality_weight is %d, but %d at %v: write the same for all endpoints of a locality",
				e.LocalityWeight, list[i].LocalityWeight, list[i].Addr)
			continue
		}
		list = append(list, e)
	}
	return list
}

// readEndpoint parses one item in the list of endpoints. If the address is missing or invalid,
// e.Addr is the zero value.
func readEndpoint(v value) (e resolve.Endpoint) {
	// Each function reads one field into e. A mistake is added to the file's list, and e's field stays 0.
	v.Read(fields{
		"addr":     yamlfile.Into(&e.Addr, authority.AddrPort),
		"weight":   yamlfile.Into(&e.Weight, parseWeight),
		"priority": yamlfile.Into(&e.Priority, parsePriority),
		"locality": yamlfile.Into(&e.Locality, parseWord),

		"locality_weight": yamlfile.Into(&e.LocalityWeight, parseWeight),
		"labels":          yamlfile.Labels(&e.Labels),
		"protocol":        yamlfile.Into(&e.Protocol, parseProtocol),
		"identity":        yamlfile.Into(&e.Identity, parseWord),
		"server_name":     yamlfile.Into(&e.ServerName, parseWord),
		"authority":       yamlfile.Into(&e.Authority, parseAuthority),
		"opaque_port":     yamlfile.Into(&e.OpaquePort, parsePort),
		"ping_interval":   yamlfile.Into(&e.PingInterval, parseDuration),
		"ping_timeout":    yamlfile.Into(&e.PingTimeout, parseDuration),
		"ping_while_idle": yamlfile.Boolean(&e.PingWhileIdle),
	})
	v.Require("addr", "addr: 10.0.0.1:80")
	if weight, ok := v.Field("locality_weight"); ok && e.Locality == "" {
		weight.Failf("the weight of a locality: write locality too")
	}
	defaultServerName(v, &e)
	return e
}

// defaultServerName sets e's TLS server name to its identity, if only the identity is set. If
// that identity is a URI, it reports a mistake, because a URI cannot be a server name.
func defaultServerName(v value, e *resolve.Endpoint) {
	switch {
	// The server name is given, or the endpoint uses cleartext.
	case e.ServerName != "" || e.Identity == "":
	case strings.Contains(e.Identity, "://"):
		identity, _ := v.Field("identity")
		identity.Failf("a URI: write server_name too")
	default:
		e.ServerName = e.Identity
	}
}

// union returns the labels in outer, those of a target, and in inner, those of one of its endpoints. If
// both contain a label, the result has the value in inner. The result may be one of the two maps, so it
// must not be modified.
func union(outer, inner map[string]string) map[string]string {
	if len(outer) == 0 {
		return inner
	}
	if len(inner) == 0 {
		return outer
	}
	labels := maps.Clone(outer)
	maps.Copy(labels, inner)
	return labels
}

// parseWeight parses a weight. 0 is a mistake, because readers expect that it means no traffic, but in
// resolve it means that the weight is not set.
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

// parsePriority parses a priority. 0 is the highest one.
func parsePriority(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		// 0 would otherwise be read as not set, and so as the default weight.
		return 0, errors.New("write a whole number from 0, for the first, to 4294967295")
	}
	return uint32(n), nil
}

// parsePort parses a port. 0 is a mistake.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("not a port: write 1 to 65535")
	}
	return uint16(n), nil
}

// parseDuration parses a duration of 0 or more, in the format of time.ParseDuration.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("write a duration such as 300ms or 10s")
	}
	return d, nil
}

// parseProtocol parses "h2", "opaque" or "unknown".
func parseProtocol(text string) (p resolve.Protocol, err error) {
	if p.UnmarshalText([]byte(text)) != nil {
		err = errors.New("write h2, opaque or unknown")
	}
	return p, err
}

// parseWord returns text, or an error if text contains white space or control characters. It
// allows all other characters, because names in certificates come in many forms.
func parseWord(text string) (string, error) {
	invalid := func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }
	if strings.ContainsFunc(text, invalid) {
		return "", errors.New("white space or a control character in it: take it out")
	}
	return text, nil
}

// parseAuthority returns text if it looks like host, host:port or [address]:port, and an error
// otherwise.
func parseAuthority(text string) (string, error) {
	if strings.ContainsAny(text, "/@?#") {
		// These begin a path, a user, a query or a fragment.
		return "", errors.New("write host:port alone, without a scheme, user or path")
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = parsePort(port)
	}
	// A bare IPv6 address also has colons.
	_, bare := netip.ParseAddr(strings.Trim(text, "[]"))
	if strings.Contains(text, ":") && bare != nil && (err != nil || host == "") {
		// Without a colon, text is a host alone. A bare address is valid too.
		return "", errors.New("write host:port, with a port from 1 to 65535")
	}
	return parseWord(text)
}
