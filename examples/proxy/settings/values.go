package settings

import (
	"math"
	"net/netip"
	"slices"
	"strings"
)

// PortRange is all ports from First to Last.
type PortRange struct{ First, Last uint16 }

// Ports is a set of ports, as ranges in ascending order that neither overlap
// nor touch. The zero value is empty.
type Ports []PortRange

// Contains reports whether port is in the set.
func (p Ports) Contains(port uint16) bool {
	_, found := slices.BinarySearchFunc(p, port, func(r PortRange, port uint16) int {
		switch {
		case r.Last < port:
			return -1
		case r.First > port:
			return 1
		}
		return 0
	})
	return found
}

// Suffixes is a set of DNS names and all below them, in lower case without a
// dot at the end; "" is the root, and so all names. The zero value is empty.
type Suffixes []string

// Contains reports whether name is one of the suffixes or below one. Labels are
// compared whole and without regard to case.
func (s Suffixes) Contains(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(s, func(suffix string) bool {
		rest, ok := strings.CutSuffix(name, suffix)
		return ok && (suffix == "" || rest == "" || strings.HasSuffix(rest, "."))
	})
}

// OriginKind is where a listener learns where a connection was going to.
type OriginKind uint8

// The kinds of origin.
const (
	Redirected    OriginKind = iota // the system says: iptables redirected it
	ProxyProtocol                   // the peer says, in a PROXY header
	Fixed                           // all were going to one address
)

// Origin is where connections were going to.
type Origin struct {
	Kind OriginKind
	Addr netip.AddrPort // if Kind is Fixed
}

// DefaultPolicy is what clients may do where nobody said otherwise.
type DefaultPolicy string

// The default policies. Those of the cluster, and Audit, need
// POLICY_CLUSTER_NETWORKS.
const (
	Deny                   DefaultPolicy = "deny"
	AllAuthenticated       DefaultPolicy = "all-authenticated"
	AllUnauthenticated     DefaultPolicy = "all-unauthenticated"
	ClusterAuthenticated   DefaultPolicy = "cluster-authenticated"
	ClusterUnauthenticated DefaultPolicy = "cluster-unauthenticated"
	Audit                  DefaultPolicy = "audit"
)

// AccessFormat is how each inbound request is logged.
type AccessFormat string

// The formats of the access log.
const (
	NoAccessLog AccessFormat = ""
	Apache      AccessFormat = "apache"
	AccessJSON  AccessFormat = "json"
)

// Cores is how many processors the proxy may use. The zero value leaves it to
// the Go runtime, which uses those of its cgroup.
type Cores struct {
	Min      int     // CORES_MIN, else CORES
	Max      int     // CORES_MAX
	MaxRatio float64 // CORES_MAX_RATIO: of those there are; more than 0 and at most 1
}

// Count returns how many of the available processors to use: Max of them, else
// what MaxRatio says, rounded, else one; but at least Min, and never more than
// there are.
func (c Cores) Count(available int) int {
	n := 1
	switch {
	case c == Cores{}:
		n = available
	case c.Max > 0:
		n = c.Max
	case c.MaxRatio > 0:
		n = int(math.Round(float64(available) * c.MaxRatio))
	}
	return max(1, min(max(n, c.Min), available))
}
