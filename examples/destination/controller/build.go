package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// config converts the decoded file to a Config. It adds an error for each destination that
// is given twice. It converts destinations in the order of their lines.
func (r *reader) config(file fileYAML) Config {
	cfg := Config{Destinations: make(map[string]Destination, len(file.Destinations))}
	if file.DefaultPolicy.given() {
		cfg.DefaultInboundPolicy = AccessPolicy(r.oneOf("defaultInboundPolicy", file.DefaultPolicy, AccessPolicies()...))
	}
	for _, t := range file.ClusterNetworks {
		cfg.ClusterNetworks = append(cfg.ClusterNetworks, r.prefix(t))
	}
	cfg.Servers = r.servers(file.Servers, cfg.ClusterNetworks)
	r.exists = make(map[target]bool)
	for key, d := range file.Destinations {
		if t, err := parseTarget(key.value); err == nil && d.Exists.value != "false" {
			r.exists[t] = true
		}
	}
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
		d := r.destination(t, file.Destinations[key])
		if err == nil {
			r.check(key.line, prefixed(checkShape(t, d), key.value))
		}
		cfg.Destinations[key.value] = d
	}
	return cfg
}

// destination converts one destination. If y contains "exists: false", the field Absent of the
// result is true. Otherwise it is false.
func (r *reader) destination(t target, y destinationYAML) Destination {
	profile := r.profile(y.Profile)
	return Destination{
		Absent:    !r.boolean("exists", y.Exists, true),
		Labels:    r.labels(y.Labels),
		Endpoints: r.endpoints(y.Endpoints),
		Profile:   profile,
		Policy:    r.policy(t, y.Policy, profile != nil && profile.Opaque),
	}
}

// endpoints converts the endpoints of one destination. It adds an error for an address that
// is given twice, because a client would use only one of the two endpoints.
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

// endpoint converts one endpoint, which belongs to a destination or to a profile. It adds
// an error for each invalid field.
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

// labels converts a mapping of labels to a map from name to value. A YAML merge key can add the
// labels of an anchor to the mapping. If both have the same label, the value in the mapping itself
// applies. labels converts the lines in order, and the mapping is on a later line than the anchor.
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

// boolean parses t, the value of the field with the given name. The argument otherwise is
// the result for a missing field. Only true and false are valid, not the other booleans of
// YAML 1.1, such as yes.
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

// number parses t, the value of the field with the given name. For an invalid value it adds
// an error and returns 1. The result 1 is valid, so that no second error follows from the
// first.
func (r *reader) number(name string, t text) uint32 {
	n, err := strconv.ParseUint(t.value, 10, 32)
	if err != nil {
		r.failf(t.line, "%s %q is not a whole number from 0 to 4294967295", name, t.value)
		return 1
	}
	return uint32(n)
}

// duration parses t, the value of the field with the given name. For an invalid value it
// adds an error and returns one second. This result is valid, so that no second error
// follows from the first.
func (r *reader) duration(name string, t text) time.Duration {
	d, err := time.ParseDuration(t.value)
	if err != nil {
		r.failf(t.line, "%s %q is not a duration, such as 250ms or 10s", name, t.value)
		return time.Second
	}
	return d
}

// byLine returns the keys of m in the order in which they are in the file. Keys on the same
// line, as in {a: 1, b: 2}, are sorted by name.
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
