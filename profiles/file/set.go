package file

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/profiles"
)

// Set is the profiles of a file. It does not change.
type Set struct {
	// Warnings are the pieces of ServiceProfiles that linkerd takes and that are
	// left out here, in the order of the lines: what its proxy leaves out, and
	// expressions that are too large for a Router.
	Warnings []*Error

	entries map[string][]*entry // by host
	order   []*entry            // as they were added
}

// Targets returns the names that have a profile of their own, in order: with a
// port where the profile is for that port alone.
func (s *Set) Targets() []string {
	names := map[string]bool{}
	for _, entries := range s.entries {
		for _, e := range entries {
			names[e.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Profile returns the profile that a [Source] without [Namespace] has for the
// target, which is a name or an IP address, with a port or without; nil is none.
func (s *Set) Profile(target string) *profiles.Profile {
	host, port, _ := splitTarget(target)
	return s.profile(host, port, "")
}

func (s *Set) profile(host string, port uint16, namespace string) *profiles.Profile {
	best, found := none, (*entry)(nil)
	for _, e := range s.entries[host] {
		if r := e.rank(port, namespace); r < best {
			best, found = r, e
		}
	}
	if found == nil {
		return nil
	}
	if port == 0 {
		port = defaultPort
	}
	return found.with(port)
}

// add returns the entry that was there before, if e cannot stand beside it.
func (s *Set) add(e *entry) (was *entry) {
	i := slices.IndexFunc(s.entries[e.host], func(other *entry) bool { return other.key() == e.key() })
	if i >= 0 {
		return s.entries[e.host][i]
	}
	if s.entries == nil {
		s.entries = make(map[string][]*entry)
	}
	s.entries[e.host] = append(s.entries[e.host], e)
	s.order = append(s.order, e)
	return nil
}

// The ranks of entries for one host. The lowest one serves.
const (
	shortWithPort = iota
	short
	ofClient // a ServiceProfile in the namespace of whoever calls
	ofService
	ofOthers
	none
)

// rank orders ServiceProfiles as linkerd's controller does: the client's own
// wins over the service's. There is no other; but where no client's namespace
// is known, none is refused for being in it.
func (e *entry) rank(port uint16, namespace string) int {
	switch {
	case !e.linkerd && e.port == 0:
		return short
	case !e.linkerd && e.port == port:
		return shortWithPort
	case !e.linkerd:
		return none
	case namespace != "" && e.namespace == namespace:
		return ofClient
	case e.namespace == "" || e.namespace == ownNamespace(e.host):
		return ofService
	case namespace == "":
		return ofOthers
	}
	return none
}

// ownNamespace is that of a service of Kubernetes, "web.default.svc.cluster.local".
func ownNamespace(host string) string {
	labels := strings.SplitN(host, ".", 4)
	if len(labels) >= 3 && labels[2] == "svc" {
		return labels[1]
	}
	return ""
}

// splitTarget returns a name or an address in the form in which all are
// compared, and the port, or 0. It is false for what can be neither.
func splitTarget(target string) (host string, port uint16, ok bool) {
	host = target
	if h, p, err := net.SplitHostPort(target); err == nil {
		if port, ok = parsePort(p); !ok {
			return "", 0, false
		}
		host = h
	}
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return addr.Unmap().String(), port, true
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return host, port, isDNSName(host)
}
