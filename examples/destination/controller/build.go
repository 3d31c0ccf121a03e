package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// config converts the decoded file in the order of its lines.
func (r *reader) config(file fileYAML) Config {
	cfg := Config{Destinations: make(map[string]Destination, len(file.Destinations))}
	first := make(map[target]int)
	for _, key := range byLine(file.Destinations) {
		t, err := parseTarget(key.value)
		if err != nil {
			r.failf(key.line, "destination %s", err)
		} else if was, twice := first[t]; twice {
			r.failf(key.line, "destination %q is given twice, first in line %d", key.value, was)
		} else {
			first[t] = key.line
		}
		d := r.destination(file.Destinations[key])
		if err == nil {
			r.check(key.line, prefixed(checkShape(t, d), key.value))
		}
		cfg.Destinations[key.value] = d
	}
	return cfg
}

// destination converts a destination, which exists unless exists is false.
func (r *reader) destination(y destinationYAML) Destination {
	return Destination{
		Absent:    !r.boolean("exists", y.Exists, true),
		Labels:    r.labels(y.Labels),
		Endpoints: r.endpoints(y.Endpoints),
		Profile:   r.profile(y.Profile),
	}
}

// endpoints converts a list of endpoints. An address that is given twice is an error,
// because a client would keep an arbitrary one of the two.
func (r *reader) endpoints(list []endpointYAML) []Endpoint {
	endpoints := make([]Endpoint, 0, len(list))
	first := make(map[netip.AddrPort]int)
	for _, y := range list {
		ep := r.endpoint(y)
		if was, twice := first[ep.Addr]; twice && ep.Addr.IsValid() {
			r.failf(y.Addr.line, "addr %s is given twice, first in line %d", ep.Addr, was)
		}
		first[ep.Addr] = y.Addr.line
		endpoints = append(endpoints, ep)
	}
	return endpoints
}

func (r *reader) endpoint(y endpointYAML) Endpoint {
	ep := Endpoint{
		Labels:     r.labels(y.Labels),
		Protocol:   Protocol(y.Protocol.value),
		Identity:   y.Identity.value,
		ServerName: y.ServerName.value,
		Authority:  y.Authority.value,
	}
	if y.Weight.given() {
		if ep.Weight = r.number("weight", y.Weight); ep.Weight == 0 {
			r.failf(y.Weight.line, "weight 0: leave the weight out for 10000, or leave the endpoint out")
		}
	}
	if !y.Addr.given() {
		r.missing(y.At.n, "the endpoint has no addr")
	} else if addr, err := netip.ParseAddrPort(y.Addr.value); err != nil {
		r.failf(y.Addr.line, "addr %q is not ip:port", y.Addr.value)
	} else {
		ep.Addr = unmap(addr)
		r.check(y.Addr.line, checkAddr(ep.Addr))
	}
	r.check(y.Protocol.line, checkProtocol(ep.Protocol))
	r.check(y.Identity.line, checkIdentity(ep.Identity))
	named := y.ServerName.line
	if !y.ServerName.given() { // otherwise the identity requires a server name
		named = y.Identity.line
	}
	r.check(named, checkServerName(ep.ServerName, ep.Identity))
	r.check(y.Authority.line, checkAuthority(ep.Authority))
	if y.Inbound.given() {
		port, err := parsePort(y.Inbound.value)
		if err != nil {
			r.check(y.Inbound.line, fmt.Errorf("opaque_port: %w", err))
		}
		ep.InboundPort = port
		r.check(y.Inbound.line, checkInboundPort(port, ep.Identity))
	}
	return ep
}

// labels converts labels. If two labels have the same name, it uses the one on the
// later line. The labels of a YAML anchor are on earlier lines than those of the
// mapping that merges them, so the mapping overrides them.
func (r *reader) labels(m map[text]text) map[string]string {
	labels := make(map[string]string, len(m))
	for _, key := range byLine(m) {
		if key.value == "" {
			r.failf(key.line, "a label must have a name")
		}
		labels[key.value] = m[key].value
	}
	return labels
}

// boolean parses true or false. The other booleans of YAML 1.1 are errors.
func (r *reader) boolean(name string, t text, otherwise bool) bool {
	switch {
	case !t.given():
		return otherwise
	case t.value == "true":
		return true
	case t.value != "false":
		r.failf(t.line, "%s %q is neither true nor false", name, t.value)
	}
	return false
}

// number and duration parse a value. After an error they return a valid value, so that
// one mistake results in one error.
func (r *reader) number(name string, t text) uint32 {
	n, err := strconv.ParseUint(t.value, 10, 32)
	if err != nil {
		r.failf(t.line, "%s %q is not a whole number from 0 to 4294967295", name, t.value)
		return 1
	}
	return uint32(n)
}

func (r *reader) duration(name string, t text) time.Duration {
	d, err := time.ParseDuration(t.value)
	if err != nil {
		r.failf(t.line, "%s %q is not a duration, such as 250ms or 10s", name, t.value)
		return time.Second
	}
	return d
}

// byLine returns the keys of a mapping in the order of the file. Keys on one line (of a
// flow mapping or a merge) are sorted by name.
func byLine[V any](m map[text]V) []text {
	keys := make([]text, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b text) int {
		if a.line != b.line {
			return a.line - b.line
		}
		return strings.Compare(a.value, b.value)
	})
	return keys
}
