package controller

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"
)

// entry is a compiled destination. It is immutable, and streams share it. A nil entry
// means that the name is not configured.
type entry struct {
	absent    bool
	labels    map[string]string
	endpoints []netip.AddrPort // in the order of the configuration
	byAddr    map[netip.AddrPort]*pb.WeightedAddr
	profile   *pb.DestinationProfile
}

// exists returns the value of the field exists of no_endpoints.
func (e *entry) exists() bool { return e != nil && !e.absent }

// describe returns the profile of the entry, which may be empty.
func (e *entry) describe() *pb.DestinationProfile {
	if e == nil {
		return &pb.DestinationProfile{}
	}
	return e.profile
}

// compile checks a configuration and converts it to entries by target. It returns all
// errors.
func compile(cfg Config) (map[string]*entry, error) {
	entries := make(map[string]*entry, len(cfg.Destinations))
	var errs []error
	for _, name := range sortedKeys(cfg.Destinations) {
		t, err := parseTarget(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("destination %w", err))
			continue
		}
		e, mistakes := compileDestination(t, cfg.Destinations[name])
		if _, twice := entries[t.String()]; twice {
			mistakes = append(mistakes, errTwice)
		}
		entries[t.String()] = e
		errs = append(errs, within(fmt.Sprintf("destination %q", name), mistakes...)...)
	}
	return entries, errors.Join(errs...)
}

// compileDestination checks and compiles a destination. If there are errors, the entry
// must not be used.
func compileDestination(t target, d Destination) (*entry, []error) {
	e := &entry{
		absent: d.Absent,
		labels: maps.Clone(d.Labels),
		byAddr: make(map[netip.AddrPort]*pb.WeightedAddr, len(d.Endpoints)),
	}
	errs := []error{checkShape(t, d), checkLabels(d.Labels)}
	for i, ep := range d.Endpoints {
		ep.Addr = unmap(ep.Addr)
		mistakes := checkEndpoint(ep)
		if e.byAddr[ep.Addr] != nil {
			mistakes = append(mistakes, fmt.Errorf("addr %s is given twice", ep.Addr))
		}
		e.byAddr[ep.Addr] = endpointMessage(ep)
		e.endpoints = append(e.endpoints, ep.Addr)
		errs = append(errs, within(fmt.Sprintf("endpoint %d", i+1), mistakes...)...)
	}
	profile, mistakes := compileProfile(t, d)
	e.profile = profile
	errs = within("", append(errs, mistakes...)...)
	if len(errs) == 0 {
		errs = within("cannot be encoded", e.checkEncoding())
	}
	return e, errs
}

// checkEncoding returns an error for text that is not UTF-8, because gRPC cannot send
// it.
func (e *entry) checkEncoding() error {
	for _, msg := range []proto.Message{e.add(e.endpoints), e.profile} {
		if _, err := proto.Marshal(msg); err != nil {
			return err
		}
	}
	return nil
}

// within adds a place to each error and drops nil errors.
func within(where string, errs ...error) []error {
	var placed []error
	for _, err := range errs {
		switch {
		case err == nil:
		case where == "":
			placed = append(placed, err)
		default:
			placed = append(placed, fmt.Errorf("%s: %w", where, err))
		}
	}
	return placed
}

// checkShape returns an error for fields that exclude each other.
func checkShape(t target, d Destination) error {
	switch {
	case d.Absent && (len(d.Endpoints) > 0 || len(d.Labels) > 0 || d.Profile != nil):
		return errAbsent
	case t.ip && (d.Absent || len(d.Endpoints) > 0 || len(d.Labels) > 0):
		return errAddress
	}
	return checkExact(t, d.Profile)
}

// checkExact returns an error for an endpoint of a profile that would have no effect.
func checkExact(t target, p *Profile) error {
	if p != nil && p.Endpoint != nil && (!t.ip || p.Name != "") {
		return errNamed
	}
	return nil
}

var (
	errTwice   = errors.New("given twice, in different spellings")
	errAbsent  = errors.New("does not exist, and must not have labels, endpoints or a profile")
	errAddress = errors.New("is an IP address, and must have only a profile, because addresses are not resolved")
	errNamed   = errors.New("has a name, so clients would ignore the endpoint of its profile")
)

// checkEndpoint returns all errors of an endpoint. Some elements of the result may be
// nil.
func checkEndpoint(ep Endpoint) []error {
	return []error{
		checkAddr(ep.Addr),
		checkProtocol(ep.Protocol),
		checkIdentity(ep.Identity),
		checkServerName(ep.ServerName, ep.Identity),
		checkAuthority(ep.Authority),
		checkInboundPort(ep.InboundPort, ep.Identity),
		checkLabels(ep.Labels),
	}
}

// unmap converts an IPv4-mapped IPv6 address to IPv4.
func unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
