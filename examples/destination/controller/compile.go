package controller

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"
)

// entry is a destination as the messages that describe it. It is never
// changed, and streams share it. A nil entry is a name that is not configured.
type entry struct {
	absent    bool
	labels    map[string]string
	endpoints []netip.AddrPort // in the order of the configuration
	byAddr    map[netip.AddrPort]*pb.WeightedAddr
	profile   *pb.DestinationProfile
}

// exists is what no_endpoints says of the name.
func (e *entry) exists() bool { return e != nil && !e.absent }

// describe returns the profile to send.
func (e *entry) describe() *pb.DestinationProfile {
	if e == nil {
		return &pb.DestinationProfile{}
	}
	return e.profile
}

// compile checks a configuration and turns it into entries by target. It
// returns every error that it finds.
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

// compileDestination returns an entry even when there are errors; it is not
// used then.
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

// checkEncoding finds text that is not UTF-8, wherever it is: a message with
// it would only fail when it is sent.
func (e *entry) checkEncoding() error {
	for _, msg := range []proto.Message{e.add(e.endpoints), e.profile} {
		if _, err := proto.Marshal(msg); err != nil {
			return err
		}
	}
	return nil
}

// within says of every error where it is, and leaves out what is none.
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

// checkShape finds what does not go together.
func checkShape(t target, d Destination) error {
	switch {
	case d.Absent && (len(d.Endpoints) > 0 || len(d.Labels) > 0 || d.Profile != nil):
		return errAbsent
	case t.ip && (d.Absent || len(d.Endpoints) > 0 || len(d.Labels) > 0):
		return errAddress
	}
	return checkExact(t, d.Profile)
}

// checkExact finds an endpoint that would be of no effect.
func checkExact(t target, p *Profile) error {
	if p != nil && p.Endpoint != nil && (!t.ip || p.Name != "") {
		return errNamed
	}
	return nil
}

var (
	errTwice   = errors.New("given twice, in different spellings")
	errAbsent  = errors.New("does not exist, and so can have no labels, endpoints or profile")
	errAddress = errors.New("is an IP address and can have a profile only: addresses are not resolved")
	errNamed   = errors.New("has a name, so that clients would not look at the endpoint of its profile")
)

// checkEndpoint returns every error of an endpoint, with nils between them.
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

// unmap makes an IPv4 address in IPv6 form an IPv4 address: it is the same
// endpoint.
func unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
