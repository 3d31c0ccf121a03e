package controller

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/proto"
)

// entry is one destination, converted to messages of the API. Its fields must not change,
// because all streams for the destination share the entry. A nil entry stands for a name that
// is not configured.
type entry struct {
	absent    bool
	labels    map[string]string
	endpoints []netip.AddrPort                    // in the order of the configuration
	byAddr    map[netip.AddrPort]*pb.WeightedAddr // the message of each endpoint
	profile   *pb.DestinationProfile
	policy    *outbound.OutboundPolicy // nil means that requests for the policy fail with NotFound
}

// exists reports whether the name is configured and not absent. Clients receive the result
// in the message no_endpoints, in its field "exists".
func (e *entry) exists() bool { return e != nil && !e.absent }

// describe returns the profile that a GetProfile stream sends. The profile is empty if the
// name is not configured.
func (e *entry) describe() *pb.DestinationProfile {
	if e == nil {
		return &pb.DestinationProfile{}
	}
	return e.profile
}

// outbound returns the outbound policy of the entry. It returns nil if the name is not
// configured or has no policy.
func (e *entry) outbound() *outbound.OutboundPolicy {
	if e == nil {
		return nil
	}
	return e.policy
}

// compile checks cfg and converts it to entries. The key of an entry is its target, written
// as host:port. The error joins all errors of cfg. After an error, the entries must not be
// used.
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
	addPolicies(entries)
	return entries, errors.Join(errs...)
}

// addPolicies sets the outbound policies of the entries of IP addresses. Such an entry gets the
// policy of the destination that its profile names, with the same port. If that destination is
// missing or has no policy, the entry gets the default policy for the name. If the profile has
// no name, the policy does not change.
func addPolicies(entries map[string]*entry) {
	for key, e := range entries {
		if t, err := parseTarget(key); err == nil {
			e.addPolicy(t, func(name target) *outbound.OutboundPolicy { return entries[name.String()].outbound() })
		}
	}
}

// addPolicy sets the policy of e if its target t is an IP address and its profile has a name.
// The policy is the result of policyOf for this name and the port of t. If policyOf returns nil,
// e gets the default policy for the name.
func (e *entry) addPolicy(t target, policyOf func(target) *outbound.OutboundPolicy) {
	if name := e.profile.GetFullyQualifiedName(); t.ip && name != "" {
		t = target{host: strings.ToLower(name), port: t.port}
		if e.policy = policyOf(t); e.policy == nil {
			e.policy = defaultPolicy(t, e.profile.GetOpaqueProtocol())
		}
	}
}

// compileDestination checks and converts the destination of t. If it returns errors, the
// entry must not be used.
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
	switch {
	case d.Policy != nil:
		e.policy = proto.CloneOf(d.Policy)
	case !t.ip && !d.Absent:
		e.policy = defaultPolicy(t, profile.GetOpaqueProtocol())
	}
	errs = within("", append(errs, mistakes...)...)
	if len(errs) == 0 {
		errs = within("cannot be encoded", e.checkEncoding())
	}
	return e, errs
}

// checkEncoding returns an error if a message of the entry has text that is not UTF-8,
// because gRPC cannot send it.
func (e *entry) checkEncoding() error {
	for _, msg := range []proto.Message{e.add(e.endpoints), e.profile, e.policy} {
		if _, err := proto.Marshal(msg); err != nil {
			return err
		}
	}
	return nil
}

// within adds the prefix where, such as "endpoint 2", to each error. It drops nil errors.
// If where is empty, errors get no prefix.
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

// checkShape returns an error for combinations of fields that are not allowed. An absent
// destination must have no other field. A destination with an IP address must have no field
// except a profile.
func checkShape(t target, d Destination) error {
	switch {
	case d.Absent && (len(d.Endpoints) > 0 || len(d.Labels) > 0 || d.Profile != nil || d.Policy != nil):
		return errAbsent
	case t.ip && (d.Absent || len(d.Endpoints) > 0 || len(d.Labels) > 0 || d.Policy != nil):
		return errAddress
	}
	return checkExact(t, d.Profile)
}

// checkExact returns an error if p has an Endpoint, the single endpoint at an IP address, that
// clients would ignore. Clients use this field only if t is an IP address and p has no name.
func checkExact(t target, p *Profile) error {
	if p != nil && p.Endpoint != nil && (!t.ip || p.Name != "") {
		return errNamed
	}
	return nil
}

var (
	errTwice   = errors.New("given twice, in different spellings")
	errAbsent  = errors.New("does not exist, and must not have labels, endpoints, a profile or a policy")
	errAddress = errors.New("is an IP address, and must have only a profile, because addresses are not resolved")
	errNamed   = errors.New("has a name, so clients would ignore the endpoint of its profile")
)

// checkEndpoint returns one error for each invalid field of ep. It returns a nil element
// for each valid field.
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
