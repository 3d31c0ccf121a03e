package file

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/profiles"
)

// Set has the profiles of a file. It is immutable.
type Set struct {
	// Warnings has the parts of ServiceProfiles that linkerd's controller accepts but this
	// package leaves out, in the order of the lines. linkerd's proxy leaves out the same
	// parts, except expressions that are too large for a Router.
	Warnings []*Error

	entries map[string][]*entry // by host
}

// Targets returns the targets that have a profile, sorted. A target has a port if its
// profile applies only to that port.
func (s *Set) Targets() []string {
	names := map[string]bool{}
	for _, entries := range s.entries {
		for _, e := range entries {
			names[e.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Profile returns the profile of target, or nil if the file has none. target is a name or an IP
// address, with or without a port. Without a port, profiles for one port are ignored.
func (s *Set) Profile(target string) *profiles.Profile {
	host, port, _ := splitTarget(target)
	return s.profile(host, port)
}

// profile returns the profile for a host and port, or nil.
func (s *Set) profile(host string, port uint16) *profiles.Profile {
	// Several entries may apply to the port; the one with the lowest rank does.
	best, found := unused, (*entry)(nil)
	for _, e := range s.entries[host] {
		if r := e.rank(port); r < best {
			best, found = r, e
		}
	}
	if found == nil {
		return nil
	}
	// Split targets without a port need one.
	if port == 0 {
		port = defaultPort
	}
	return found.with(port)
}

// add adds e to the set. If the set already has an entry with the same key, add returns
// that entry and does not add e.
func (s *Set) add(e *entry) (existing *entry) {
	// There must be only one entry for each key.
	i := slices.IndexFunc(s.entries[e.host], func(other *entry) bool { return other.key() == e.key() })
	if i >= 0 {
		return s.entries[e.host][i]
	}
	if s.entries == nil {
		s.entries = make(map[string][]*entry)
	}
	s.entries[e.host] = append(s.entries[e.host], e)
	return nil
}

// entry is one profile of a file. It applies to all ports of a host, or to one port. [entry.with]
// returns the profile that a target with a given port gets from the entry.
type entry struct {
	at *Error // position of the profile in the file

	host      string // in lower case, without a dot at the end
	port      uint16 // 0 means all ports for which the file has no other entry
	namespace string // namespace of a ServiceProfile; may be empty
	linkerd   bool   // from a ServiceProfile, and not in the short form of this package

	profile     profiles.Profile // without Targets; OpaqueProtocol means that all ports are opaque
	split       []profiles.Target
	opaquePorts map[uint16]bool
}

// The ranks of the entries for one host. The entry with the lowest rank is used.
const (
	shortWithPort = iota
	short
	ofService // a ServiceProfile in the namespace of its service
	ofOthers
	unused
)

// rank returns the rank of e for a target with the given port. The entry with the lowest rank
// applies to the target. An entry for another port never applies: its rank is the constant unused.
// A ServiceProfile in the namespace of its service has a lower rank than one in another namespace.
func (e *entry) rank(port uint16) int {
	// Only an entry in the short form can be for one port.
	switch {
	case e.linkerd && (e.namespace == "" || e.namespace == ownNamespace(e.host)):
		return ofService
	case e.linkerd:
		return ofOthers
	case e.port == 0:
		return short
	case e.port == port:
		return shortWithPort
	}
	return unused
}

// ownNamespace returns the namespace in the name of a Kubernetes service, such as
// "default" for "web.default.svc.cluster.local". It returns "" for other names.
func ownNamespace(host string) string {
	// SplitN keeps the rest, so that a longer cluster domain does not matter.
	labels := strings.SplitN(host, ".", 4)
	if len(labels) >= 3 && labels[2] == "svc" {
		return labels[1]
	}
	return ""
}

// splitTarget returns the host and the port of target. The port is 0 if target has no port. A name
// is returned in lower case without a final dot. ok is false if target has neither a name nor an
// address.
// A target without a port is not an error.
func splitTarget(target string) (host string, port uint16, ok bool) {
	host = target
	if h, p, err := net.SplitHostPort(target); err == nil {
		if port, ok = parsePort(p); !ok {
			return "", 0, false
		}
		host = h
	}
	// Brackets may surround an IPv6 address without a port.
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return addr.Unmap().String(), port, true
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return host, port, authority.IsDNSName(host)
}

// defaultPort is the port that is assumed for a target without a port, as in linkerd's
// controller.
const defaultPort = 80

// with returns the profile of e for a target with the given port. Split and mirror targets without
// a port get this port.
func (e *entry) with(port uint16) *profiles.Profile {
	p := e.profile
	// A port may be opaque by itself, or all ports are.
	p.OpaqueProtocol = p.OpaqueProtocol || e.opaquePorts[port]
	// Other ports share the routes of e, so they must not be modified.
	p.Routes = withMirrorPorts(p.Routes, port)
	for _, t := range e.split {
		t.Authority = withPort(t.Authority, port)
		p.Targets = append(p.Targets, t)
	}
	return &p
}

// mistake returns an Error at the position of e, with the given reason.
func (e *entry) mistake(format string, args ...any) *Error {
	at := *e.at
	at.Reason = fmt.Sprintf(format, args...)
	return &at
}

// key identifies an entry of a file. Two entries with the same key in one file are a mistake.
type key struct {
	host      string
	port      uint16
	namespace string
	linkerd   bool // see entry.linkerd
}

// key returns what identifies the entry: two entries of a file must not have the same key.
func (e *entry) key() key { return key{e.host, e.port, e.namespace, e.linkerd} }

// String returns the entry's name as a user would write it.
func (e *entry) String() string {
	if e.port == 0 {
		return e.host
	}
	return net.JoinHostPort(e.host, strconv.Itoa(int(e.port)))
}

// defaultTTL is the TTL of the default retry budget.
const defaultTTL = 10 * time.Second

// defaultBudget returns the retry budget that linkerd's controller uses by default.
func defaultBudget() *profiles.RetryBudget {
	return &profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: defaultTTL}
}
