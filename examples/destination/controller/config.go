package controller

import (
	"net/netip"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
)

// Config is the configuration of a controller: its destinations and inbound policies. A
// key of Destinations is host:port, or only host if the port is 80. If the host is an IP
// address, the destination can have only a profile, because [Controller.Get] rejects IP
// addresses.
type Config struct {
	Destinations map[string]Destination

	Servers              []Server       // inbound policies
	DefaultInboundPolicy AccessPolicy   // for ports without a Server; "" means AllUnauthenticated
	ClusterNetworks      []netip.Prefix // for the "cluster" access policies; empty means linkerd's default
}

// Destination configures the endpoints and the profile of one name.
type Destination struct {
	Absent    bool              // the name does not exist; other fields must be zero
	Labels    map[string]string // metric labels, added to all endpoints
	Endpoints []Endpoint
	Profile   *Profile // nil means a profile that has only the name

	// Policy is the outbound policy. nil means a policy that balances over the endpoints.
	// It must be nil for an IP address. If the profile of the address has a name, the
	// policy of this name applies to the address.
	Policy *outbound.OutboundPolicy
}

// Endpoint is the address of one server of a destination, and how clients connect to it.
type Endpoint struct {
	Addr       netip.AddrPort
	Weight     uint32            // share of the load; 0 means 10000, the default of the API
	Labels     map[string]string // override the labels of the destination
	Protocol   Protocol
	Identity   string // TLS identity: a DNS-like name or a URI; "" means cleartext
	ServerName string // TLS server name; "" means the identity, which must not be a URI then
	Authority  string // authority that clients send instead of the request's

	// InboundPort is a port of the endpoint's proxy. If it is not 0, clients connect to
	// this port and send a transport header, which contains the port of Addr. It requires
	// Identity. 0 means that clients connect to Addr.
	InboundPort uint16
}

// Protocol is the protocol that clients should use for an endpoint.
type Protocol string

// The protocols of an endpoint. Clients receive them as hints.
const (
	Unknown Protocol = ""       // no hint: clients use the protocol of the request
	H2      Protocol = "h2"     // the endpoint accepts HTTP/2
	Opaque  Protocol = "opaque" // forward bytes, without protocol detection
)

// Profile configures how clients send the requests of a destination: routes, traffic splits
// and the retry budget.
type Profile struct {
	Name   string // DNS name; "" means the host of the destination, or no name for an IP address
	Opaque bool   // clients forward bytes, without protocol detection and without routes
	Routes []Route
	Splits []Split
	Budget *RetryBudget // nil means no retries

	// Endpoint is the single endpoint at an IP address. Only the profile of an IP address
	// may have it. Clients then connect to the endpoint without balancing and ignore its
	// weight. Name must be empty, because clients would use the name instead.
	Endpoint *Endpoint
}

// Route configures the requests that match a condition. If a request matches several routes
// of the profile, it belongs to the first of them.
type Route struct {
	Name    string // required; the value of the label "route"
	Labels  map[string]string
	Match   Match
	Classes []ResponseClass
	Timeout time.Duration // 0 means no timeout

	// Retryable allows clients to retry failed requests with an idempotent method: GET,
	// HEAD, OPTIONS, TRACE, PUT or DELETE. Clients may receive two routes with the same
	// name, because the field is_retryable of the API does not depend on the method.
	Retryable bool
	// RetryNonIdempotent allows retries of all methods, which includes gRPC calls. It
	// requires Retryable.
	RetryNonIdempotent bool
}

// Match is a condition on requests. A request matches if it meets every field that is set.
// All requires all of its conditions, Any requires at least one of them, and Not requires
// that its condition is not met. At least one field must be set.
type Match struct {
	Method string // exact, upper case
	Path   string // regular expression on the path without its query, anchored at both ends
	All    []Match
	Any    []Match
	Not    *Match
}

// ResponseClass specifies whether a response with a status from Min to Max counts as a
// failure. The first class of a route that contains the status applies.
type ResponseClass struct {
	Min, Max uint32
	Failure  bool
}

// Split is one target of a traffic split: another destination that receives a share of the
// requests. The share is Weight, divided by the sum of the weights of all splits.
type Split struct {
	Authority string // host:port, not an IP address
	Weight    uint32 // 0 means no traffic
}

// RetryBudget limits the retries of clients to a share of their requests.
type RetryBudget struct {
	Ratio        float64       // allowed retries per request, 0 to 1000
	MinPerSecond uint32        // retries per second that are always allowed
	TTL          time.Duration // how long a request counts for Ratio, 1 s to 60 s
}
