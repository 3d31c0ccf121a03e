package settings

import (
	"math"
	"net/netip"
	"slices"
	"strings"
)

// PortRange is the ports from First to Last, including both.
type PortRange struct{ First, Last uint16 }

// Ports is a set of ports. Its ranges are in ascending order, and neither overlap nor are
// adjacent. The zero value is the empty set.
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

// Suffixes is the set of all DNS names that are equal to one of the suffixes or below it.
// A suffix is in lower case without a final dot. All names are below the suffix "". The
// zero value is the empty set.
type Suffixes []string

// Contains reports whether name is equal to a suffix or below it. Case is ignored. Labels
// match as a whole, so the suffix b.c contains a.b.c but not ab.c.
func (s Suffixes) Contains(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(s, func(suffix string) bool {
		rest, ok := strings.CutSuffix(name, suffix)
		return ok && (suffix == "" || rest == "" || strings.HasSuffix(rest, "."))
	})
}

// OriginKind is a way to find the original destination of a connection.
type OriginKind uint8

// The kinds of OriginKind, by the source of the original destination.
const (
	Redirected    OriginKind = iota // the system, for connections that iptables redirected
	ProxyProtocol                   // the header of the PROXY protocol, which the client sends
	Fixed                           // one address for all connections
)

// Origin specifies how a listener finds the original destination of a connection, which is
// the address to which the client connected, before the connection was redirected.
type Origin struct {
	Kind OriginKind
	Addr netip.AddrPort // if Kind is Fixed
}

// DefaultPolicy specifies which clients may connect to a port of the application. It
// applies to a port until the policy controller sends a policy of the port.
type DefaultPolicy string

// The default policies. Deny rejects all clients. All in a name means clients at any
// address, and Cluster means only clients in POLICY_CLUSTER_NETWORKS. Authenticated
// requires that the client also has an identity. Audit permits all clients and logs the
// decisions. POLICY_CLUSTER_NETWORKS must be set for Audit too, as in linkerd's proxy.
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
	NoAccessLog AccessFormat = ""       // no access log
	Apache      AccessFormat = "apache" // the common log format of Apache
	AccessJSON  AccessFormat = "json"   // one JSON object per line
)

// Cores limits how many processors the proxy uses. The zero value means the default of the
// Go runtime, which is the CPU limit of the cgroup.
type Cores struct {
	Min      int     // CORES_MIN, else CORES
	Max      int     // CORES_MAX
	MaxRatio float64 // CORES_MAX_RATIO: share of the available processors; above 0, at most 1
}

// Count returns how many of the available processors the proxy uses. A zero c means all of
// them. Otherwise the number is Max, or else the share MaxRatio of the available
// processors, rounded, or else 1. It is then raised to Min, and limited to available.
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
