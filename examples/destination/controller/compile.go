package controller

import (
	"maps"
	"net/netip"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/internal/yamlfile"
)

// entry is one destination as API messages. All streams for the destination share it, so it must
// not change. A nil entry stands for a name that is not configured.
type entry struct {
	absent    bool // configured as a name that does not exist
	labels    map[string]string
	endpoints []netip.AddrPort                    // in the order of the configuration
	byAddr    map[netip.AddrPort]*pb.WeightedAddr // each endpoint's message
	profile   *pb.DestinationProfile
	policy    *outbound.OutboundPolicy // if nil, requests for the policy fail with NotFound
}

// exists reports whether the name exists: it is configured (e is not nil), and not with the field absent,
// by which a configuration says that a name does not exist. A client without endpoints gets this as the
// field exists of no_endpoints.
func (e *entry) exists() bool { return e != nil && !e.absent }

// describe returns the profile to send on a GetProfile stream. It is empty if the name is not
// configured.
func (e *entry) describe() *pb.DestinationProfile {
	if e == nil {
		return &pb.DestinationProfile{}
	}
	return e.profile
}

// outbound returns the entry's outbound policy. It is nil if the name is not configured or has no
// policy.
func (e *entry) outbound() *outbound.OutboundPolicy {
	if e == nil {
		return nil
	}
	return e.policy
}

// compile checks cfg and converts it to entries, whose keys are targets in the form host:port.
// The error joins an [*Error] for each mistake in cfg; if it is not nil, the entries must not be
// used.
func compile(cfg Config) (map[string]*entry, error) {
	// v has no file: it only collects mistakes, with the path of each.
	v := yamlfile.Program(nil)
	validate(v, cfg)
	entries := make(map[string]*entry, len(cfg.Destinations))
	for name, d := range cfg.Destinations {
		if t, err := parseTarget(name); err == nil { // validate reports the error
			entries[t.String()] = newEntry(v.At("destinations").At(name), t, d)
		}
	}
	// A policy may be that of another destination, so this needs all entries.
	addPolicies(entries)
	return entries, yamlfile.Join(v.Mistakes)
}

// addPolicies gives the entries for IP addresses the policy of the destination that their profile
// names, on the same port. A client that connects to a Service's cluster IP should be treated
// just like one that uses its name.
func addPolicies(entries map[string]*entry) {
	for key, e := range entries {
		if t, err := parseTarget(key); err == nil {
			e.addPolicy(t, func(name target) *outbound.OutboundPolicy { return entries[name.String()].outbound() })
		}
	}
}

// addPolicy sets e's policy if t is an IP address whose profile has a name, and e does not have a
// policy yet. policyOf returns the named destination's policy on t's port. If it returns nil, e
// gets the default policy for the name.
func (e *entry) addPolicy(t target, policyOf func(target) *outbound.OutboundPolicy) {
	if name := e.profile.GetFullyQualifiedName(); t.ip && name != "" && e.policy == nil {
		// The client's namespace stays, because it decides whose routes apply.
		t = target{host: strings.ToLower(name), port: t.port, client: t.client}
		if e.policy = policyOf(t); e.policy == nil {
			e.policy = defaultPolicy(t, e.profile.GetOpaqueProtocol())
		}
	}
}

// newEntry converts d, the destination for t. Text that cannot be sent is reported as a mistake
// at v.
func newEntry(v yamlfile.Value, t target, d Destination) *entry {
	e := &entry{
		absent:  d.Absent,
		labels:  maps.Clone(d.Labels),
		byAddr:  make(map[netip.AddrPort]*pb.WeightedAddr, len(d.Endpoints)),
		profile: profileMessage(t, d),
	}
	for _, ep := range d.Endpoints {
		// The same address may be written as IPv4 or as IPv4-mapped IPv6.
		ep.Addr = unmap(ep.Addr)
		e.byAddr[ep.Addr] = endpointMessage(ep)
		e.endpoints = append(e.endpoints, ep.Addr)
	}
	switch {
	case d.Policy != nil:
		e.policy = proto.CloneOf(d.Policy)
	// An IP address gets its policy in addPolicies, when the named destinations are known.
	case !t.ip && !d.Absent:
		e.policy = defaultPolicy(t, e.profile.GetOpaqueProtocol())
	}
	// With other mistakes, this one is probably their consequence.
	if err := e.checkEncoding(); err != nil && len(v.Mistakes) == 0 {
		v.Failf("cannot be encoded: %v", err)
	}
	return e
}

// checkEncoding returns an error if a message contains text that is not UTF-8, because gRPC
// cannot send it.
func (e *entry) checkEncoding() error {
	for _, msg := range []proto.Message{e.add(e.endpoints), e.profile, e.policy} {
		if _, err := proto.Marshal(msg); err != nil {
			return err
		}
	}
	return nil
}

// unmap converts an IPv4-mapped IPv6 address to IPv4.
func unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
