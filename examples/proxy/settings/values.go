package settings

import (
	"math"
	"net/netip"
	"slices"
	"strings"
)

// PortRange is all ports from First to Last.
type PortRange struct{ First, Last uint16 }

// Ports is a set of ports: ascending ranges that neither overlap nor touch. The zero value
// is empty.
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

// Suffixes is a set of DNS names with all names below them, in lower case without a final
// dot. "" contains all names. The zero value is empty.
type Suffixes []string

// Contains reports whether name is one of the suffixes or below one. Labels are
// compared whole and case-insensitively.
func (s Suffixes) Contains(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(s, func(suffix string) bool {
		rest, ok := strings.CutSuffix(name, suffix)
		return ok && (suffix == "" || rest == "" || strings.HasSuffix(rest, "."))
	})
}

// OriginKind is the source of a connection's original destination.
type OriginKind uint8

// The kinds of origin.
const (
	Redirected    OriginKind = iota // the system, for connections redirected by iptables
	ProxyProtocol                   // the PROXY header of the client
	Fixed                           // one address for all connections
)

// Origin is the way in which a listener finds original destinations.
type Origin struct {
	Kind OriginKind
	Addr netip.AddrPort // if Kind is Fixed
}

// DefaultPolicy is the policy of ports without another policy.
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

// AccessFormat is the format of the access log.
type AccessFormat string

// The formats of the access log.
const (
	NoAccessLog AccessFormat = ""
	Apache      AccessFormat = "apache"
	AccessJSON  AccessFormat = "json"
)

// Cores limits the processors of the proxy. The zero value means the default of the Go
// runtime, which is the limit of its cgroup.
type Cores struct {
	Min      int     // CORES_MIN, else CORES
	Max      int     // CORES_MAX
	MaxRatio float64 // CORES_MAX_RATIO: of the available ones; above 0 and at most 1
}

// Count returns the number of processors to use, of those available. It is Max, or else
// MaxRatio of the available ones, rounded, or else 1. The result is at least Min and at
// most available.
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
