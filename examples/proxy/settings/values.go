package settings

import (
	"math"
	"net/netip"
	"slices"
	"strings"
)

// PortRange is the ports from First to Last, inclusive.
type PortRange struct{ First, Last uint16 }

// Ports is a set of ports. Its ranges are ascending and neither overlap nor touch. The zero value
// is the empty set.
type Ports []PortRange

// Contains reports whether port is in the set.
func (p Ports) Contains(port uint16) bool {
	// The ranges are sorted, so a range that contains the port counts as equal to it.
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

// Suffixes is the set of all DNS names at or below one of its suffixes, which are in lower case
// without a final dot. The suffix "" contains all names. The zero value is the empty set.
type Suffixes []string

// Contains reports whether name is at or below a suffix. It ignores case. Labels match as a whole,
// so the suffix b.c contains a.b.c but not ab.c.
func (s Suffixes) Contains(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(s, func(suffix string) bool {
		// What remains must be empty or end at a dot, so that labels match as a whole.
		rest, ok := strings.CutSuffix(name, suffix)
		return ok && (suffix == "" || rest == "" || strings.HasSuffix(rest, "."))
	})
}

// OriginKind tells how a connection's original destination is found.
type OriginKind uint8

// Sources of the original destination.
const (
	Redirected    OriginKind = iota // the system, for connections redirected by iptables
	ProxyProtocol                   // the PROXY header that the client sends
	Fixed                           // one address for all connections
)

// Origin specifies how a listener finds the original destination of a connection: the address to
// which the client connected before the connection was redirected.
type Origin struct {
	Kind OriginKind
	Addr netip.AddrPort // if Kind is Fixed
}

// DefaultPolicy specifies which clients may connect to an application's port. It applies until the
// policy controller sends the port's policy.
type DefaultPolicy string

// Deny rejects all clients. All means clients at any address, and Cluster only those in
// POLICY_CLUSTER_NETWORKS. Authenticated also requires that the client has an identity. Audit
// permits all clients and logs the decisions. It requires POLICY_CLUSTER_NETWORKS too, as
// in linkerd, although it does not use it.
const (
	Deny                   DefaultPolicy = "deny"
	AllAuthenticated       DefaultPolicy = "all-authenticated"
	AllUnauthenticated     DefaultPolicy = "all-unauthenticated"
	ClusterAuthenticated   DefaultPolicy = "cluster-authenticated"
	ClusterUnauthenticated DefaultPolicy = "cluster-unauthenticated"
	Audit                  DefaultPolicy = "audit"
)

// AccessFormat is the access log's format.
type AccessFormat string

// Formats of the access log.
const (
	NoAccessLog AccessFormat = ""       // no access log
	Apache      AccessFormat = "apache" // the common log format of Apache
	AccessJSON  AccessFormat = "json"   // one JSON object per line
)

// Cores limits how many processors the proxy uses. The zero value means Go's default, which is the
// cgroup's CPU limit.
type Cores struct {
	Min      int     // CORES_MIN, else CORES
	Max      int     // CORES_MAX
	MaxRatio float64 // CORES_MAX_RATIO: share of the available processors; above 0, at most 1
}

// Count returns how many of the available processors the proxy should use: Max, otherwise MaxRatio
// of the available ones, otherwise 1, but at least Min and at most available. A zero c means all of
// them.
func (c Cores) Count(available int) int {
	n := 1
	// A maximum has precedence over a ratio. If only Min is set, it is the number.
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
