package controller

import (
	"net/netip"
	"time"
)

// Config is the state of a controller. The keys are host:port; the port may be left out if
// it is 80. A host that is an IP address can only have a profile, because addresses are
// not resolved.
type Config struct {
	Destinations map[string]Destination
}

// Destination configures one name.
type Destination struct {
	Absent    bool // the name does not exist; other fields must be zero
	Labels    map[string]string
	Endpoints []Endpoint
	Profile   *Profile // nil means a profile with only the name
}

// Endpoint is one endpoint of a destination.
type Endpoint struct {
	Addr       netip.AddrPort
	Weight     uint32            // 10000 is one unit of load; 0 means 10000
	Labels     map[string]string // override the destination's
	Protocol   Protocol
	Identity   string // TLS identity: a DNS-like name or a URI; "" means cleartext
	ServerName string // TLS server name; "" means the identity, which must not be a URI then
	Authority  string // authority that clients send instead of the request's

	// InboundPort is the port of the endpoint's proxy. Other proxies connect to it with
	// a transport header. It requires an identity. 0 means that they connect to Addr.
	InboundPort uint16
}

// Protocol is the protocol hint of an endpoint.
type Protocol string

// The protocol hints.
const (
	Unknown Protocol = ""       // no hint
	H2      Protocol = "h2"     // HTTP/2
	Opaque  Protocol = "opaque" // opaque bytes
)

// Profile configures the requests of a destination.
type Profile struct {
	Name   string // fully qualified name; "" means the destination's host, unless that is an IP address
	Opaque bool   // connections are opaque: no detection, no routes
	Routes []Route
	Splits []Split
	Budget *RetryBudget // nil means no retries

	// Endpoint is for a profile of an IP address that belongs to one endpoint. Clients
	// then connect to it without balancing. Name must be empty, because clients prefer
	// the name. The weight of the endpoint is ignored.
	Endpoint *Endpoint
}

// Route is a kind of request. The route of a request is the first one that matches.
type Route struct {
	Name    string // required; the value of the label "route"
	Labels  map[string]string
	Match   Match
	Classes []ResponseClass
	Timeout time.Duration // 0 means no timeout

	// Retryable allows clients to retry failed requests that are idempotent: GET, HEAD,
	// OPTIONS, TRACE, PUT, DELETE (RFC 9110). RetryNonIdempotent also requires
	// Retryable, and allows retries of all methods, gRPC calls included. The field
	// is_retryable of the API applies to all methods. Therefore a route that Match does
	// not restrict to one method is sent as two routes with the same name.
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

// ResponseClass specifies whether responses with a status from Min to Max are failures.
// The first class that matches decides.
type ResponseClass struct {
	Min, Max uint32
	Failure  bool
}

// Split sends a share of a destination's traffic to another one.
type Split struct {
	Authority string // host:port, not an IP address
	Weight    uint32 // relative to the other splits; 0 means no traffic
}

// RetryBudget limits retries to a share of the requests.
type RetryBudget struct {
	Ratio        float64       // retries per request, 0 to 1000
	MinPerSecond uint32        // retries per second that are always allowed
	TTL          time.Duration // time for which a request counts, from 1 s to 60 s
}
