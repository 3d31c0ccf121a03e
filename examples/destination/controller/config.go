package controller

import (
	"net/netip"
	"time"
)

// Config is the whole state of a controller. The keys are host:port; the port
// may be left out when it is 80. A host that is an IP address can have a
// profile only, because addresses are not resolved.
type Config struct {
	Destinations map[string]Destination
}

// Destination is what is known of one name.
type Destination struct {
	Absent    bool // the name is known not to exist; then all else is zero
	Labels    map[string]string
	Endpoints []Endpoint
	Profile   *Profile // nil means a profile that only says the name
}

// Endpoint is one address at which a destination is served.
type Endpoint struct {
	Addr       netip.AddrPort
	Weight     uint32            // 10000 is one unit of load; 0 means 10000
	Labels     map[string]string // these win over the destination's
	Protocol   Protocol
	Identity   string // TLS identity: a DNS-like name or a URI; "" means cleartext
	ServerName string // TLS server name; "" means the identity, which then is no URI
	Authority  string // authority that clients send instead of the request's

	// InboundPort is the port of the proxy beside the endpoint, to which
	// proxies connect instead, and say there which port they mean. It needs an
	// identity. 0 means that they connect to Addr.
	InboundPort uint16
}

// Protocol is a hint of what an endpoint speaks.
type Protocol string

// The protocol hints.
const (
	Unknown Protocol = ""       // nothing is known
	H2      Protocol = "h2"     // HTTP/2
	Opaque  Protocol = "opaque" // not to be parsed
)

// Profile says how the requests of a destination are to be treated.
type Profile struct {
	Name   string // fully qualified name; "" means the destination's host, unless that is an IP address
	Opaque bool   // treat connections as bytes: no detection, no routes
	Routes []Route
	Splits []Split
	Budget *RetryBudget // nil means no retries

	// Endpoint is all there is, so that nothing is balanced: what an address
	// that belongs to one endpoint has, and no name: clients look at the name
	// first. Its weight means nothing.
	Endpoint *Endpoint
}

// Route is a kind of request. The first route of a profile whose match holds
// is a request's route.
type Route struct {
	Name    string // required; the value of the label "route"
	Labels  map[string]string
	Match   Match
	Classes []ResponseClass
	Timeout time.Duration // 0 means none

	// Retryable allows clients to retry failed requests that are idempotent: GET,
	// HEAD, OPTIONS, TRACE, PUT, DELETE (RFC 9110). RetryNonIdempotent, which needs
	// Retryable, allows it for all methods, gRPC calls included. is_retryable of
	// the API has no method, so a route that Match does not restrict to one method
	// is sent as two routes of the same name.
	Retryable          bool
	RetryNonIdempotent bool
}

// Match is a condition on requests. All fields that are set must hold; at
// least one must be set.
type Match struct {
	Method string // exact, upper case
	Path   string // regular expression on the path without its query, anchored at both ends
	All    []Match
	Any    []Match
	Not    *Match
}

// ResponseClass says whether responses with a status of Min to Max, both
// included, are failures. The first class that holds decides.
type ResponseClass struct {
	Min, Max uint32
	Failure  bool
}

// Split is a share of a destination's traffic that goes to another one.
type Split struct {
	Authority string // host:port, not an IP address
	Weight    uint32 // relative to the other splits; 0 means no traffic
}

// RetryBudget limits retries to a share of the requests.
type RetryBudget struct {
	Ratio        float64       // retries per request, 0 to 1000
	MinPerSecond uint32        // retries a second that are always allowed
	TTL          time.Duration // how long a request counts, 1 s to 60 s
}
