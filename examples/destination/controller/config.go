package controller

import (
	"net/netip"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
)

// Config configures a controller. Keys of Destinations are host:port, or just host for port 80. A
// destination whose host is an IP address cannot have endpoints, because [Controller.Get] does
// not resolve IP addresses.
type Config struct {
	Destinations map[string]Destination

	Servers              []Server       // inbound policies
	DefaultInboundPolicy AccessPolicy   // for ports without a Server; "" means AllUnauthenticated
	ClusterNetworks      []netip.Prefix // for the "cluster" access policies; empty means linkerd's default
}

// Destination describes one name: its endpoints, profile and policy.
type Destination struct {
	Absent    bool              // the name does not exist; other fields must be zero
	Labels    map[string]string `yaml:"labels"` // metric labels, added to all endpoints
	Endpoints []Endpoint        `yaml:"endpoints"`
	Profile   *Profile          `yaml:"profile"` // nil means a profile with just the name

	// Policy is the outbound policy. If it is nil, clients balance over the endpoints. For an IP
	// address, nil means the policy of the name in its profile, if there is one.
	Policy *outbound.OutboundPolicy
}

// Endpoint is one server's address, and how clients should connect to it.
type Endpoint struct {
	Addr       netip.AddrPort    `yaml:"addr" is:"required"`
	Weight     uint32            `yaml:"weight" min:"1"` // share of the load; 0 means 10000, the API's default
	Labels     map[string]string `yaml:"labels"`         // override the destination's labels
	Protocol   Protocol          `yaml:"protocol" enum:",h2,opaque"`
	Identity   string            `yaml:"identity"`    // TLS identity: a DNS-like name or a URI; "" means cleartext
	ServerName string            `yaml:"server_name"` // TLS server name; "" means the identity; required if that is a URI
	Authority  string            `yaml:"authority"`   // authority that clients send instead of the request's own

	// InboundPort is the port on which the endpoint's proxy accepts connections for other ports.
	// If it is set, clients connect to it and send a transport header with Addr's port. It
	// requires Identity. If it is 0, clients connect to Addr directly.
	InboundPort uint16 `yaml:"opaque_port" min:"1"`
}

// Protocol tells clients which protocol an endpoint speaks.
type Protocol string

// Protocols, which clients treat as hints.
const (
	Unknown Protocol = ""       // no hint: clients use the request's protocol
	H2      Protocol = "h2"     // the endpoint accepts HTTP/2
	Opaque  Protocol = "opaque" // forward bytes, without protocol detection
)

// Profile configures how clients send requests to a destination: routes, traffic splits and a
// retry budget.
type Profile struct {
	Name   string       `yaml:"name"`   // DNS name; "" means the destination's host, or no name for an IP address
	Opaque bool         `yaml:"opaque"` // clients forward bytes, without detecting the protocol and without routes
	Routes []Route      `yaml:"routes"`
	Splits []Split      `yaml:"splits"`
	Budget *RetryBudget `yaml:"retry_budget"` // nil means no retries

	// Endpoint is the only server at an IP address, so it is allowed only there. Clients connect
	// to it without balancing and ignore its weight. Name must be empty, because clients would
	// prefer it.
	Endpoint *Endpoint `yaml:"endpoint"`
}

// Route configures the requests that match a condition. A request belongs to the first route that
// it matches.
type Route struct {
	Name    string            `yaml:"name" is:"required"` // used as the label "route"
	Labels  map[string]string `yaml:"labels"`
	Match   Match             `yaml:"match" is:"required"`
	Classes []ResponseClass   `yaml:"response_classes"`
	Timeout time.Duration     `yaml:"timeout"` // 0 means no timeout

	// Retryable lets clients retry failed requests whose method is idempotent: GET, HEAD,
	// OPTIONS, TRACE, PUT or DELETE. Because the API's is_retryable does not depend on the
	// method, clients may receive two routes with the same name.
	Retryable bool `yaml:"retryable"`
	// RetryNonIdempotent allows retries for every method, including gRPC calls. It requires
	// Retryable.
	RetryNonIdempotent bool `yaml:"retry_non_idempotent"`
}

// Match is a condition on requests. A request must meet every field that is set: all conditions
// in All, at least one in Any, and not the one in Not. At least one field must be set.
type Match struct {
	Method string  `yaml:"method"` // exact, upper case
	Path   string  `yaml:"path"`   // regular expression for the whole path, without the query
	All    []Match `yaml:"all"`
	Any    []Match `yaml:"any"`
	Not    *Match  `yaml:"not"`
}

// ResponseClass says whether a status from Min to Max counts as a failure. A response belongs to
// the first class in its route that contains the status.
type ResponseClass struct {
	Min, Max uint32
	Failure  bool
}

// Split sends a share of the requests to another destination. The share is Weight divided by the
// sum of all splits' weights.
type Split struct {
	Authority string `yaml:"authority" is:"required"` // host:port, not an IP address
	Weight    uint32 `yaml:"weight" is:"required"`    // 0 means no traffic
}

// RetryBudget limits clients' retries to a share of their requests. Fields that a file leaves out
// default as in linkerd's control plane.
type RetryBudget struct {
	Ratio        float64       `yaml:"ratio" min:"0" max:"1000" default:"0.2"`       // allowed retries per request, 0 to 1000
	MinPerSecond uint32        `yaml:"min_per_second" max:"2147483647" default:"10"` // retries per second that are always allowed
	TTL          time.Duration `yaml:"ttl" min:"1s" max:"1m" default:"10s"`          // how long a request counts for Ratio, 1 s to 60 s
}
