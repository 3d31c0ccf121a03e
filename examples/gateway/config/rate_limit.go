package config

import (
	"fmt"
	"strings"
)

// RateLimit limits the request rate with a token bucket.
type RateLimit struct {
	// Average number of requests allowed per second.
	RequestsPerSecond float64 `yaml:"requestsPerSecond" is:"required" min:"0.001" max:"10000000"`
	// Size of the token bucket, which is how many requests may arrive in a burst. 0, the default,
	// means requestsPerSecond, but at least 1.
	Burst int `yaml:"burst" min:"0" max:"10000000"`
	// Route applies the limit to all requests together. Client limits each client address, or
	// each /64 prefix for IPv6, separately. Header limits each value of a header field, such as an
	// API key, separately; requests without the field share one limit.
	Per string `yaml:"per" default:"Route" enum:"Route,Client,Header"`
	// Name of the header field, for Header.
	Header HeaderName `yaml:"header"`
}

// check reports a header field that is missing or has no effect.
func (r *RateLimit) check(n node) {
	// The two conditions exclude each other.
	if r.Per == "Header" && r.Header == "" {
		n.at("header").failf("missing: per: Header needs the name of a header field")
	}
	if r.Per != "Header" && r.Header != "" {
		n.at("header").failf("want it only with per: Header")
	}
}

// Bucket returns the token bucket's size: burst, or its default.
func (r *RateLimit) Bucket() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return max(1, int(r.RequestsPerSecond))
}

// RateLimitService is a service that counts requests for several gateways and speaks Envoy's API
// envoy.service.ratelimit.v3, such as github.com/envoyproxy/ratelimit.
type RateLimitService struct {
	// The counting service.
	BackendRef BackendName `yaml:"backendRef" is:"required"`
	// The domain under which the counting service configures the limits.
	Domain string `yaml:"domain" is:"required"`
	// How long to wait for the counting service.
	Timeout Duration `yaml:"timeout" default:"20ms"`
	// What happens if the counting service fails: true responds with the status 503, and false
	// forwards the request without a limit.
	FailureModeDeny bool `yaml:"failureModeDeny"`
	// DraftVersion03 adds X-RateLimit-Limit, -Remaining and -Reset to responses, as in
	// draft-polli-ratelimit-headers-03.
	EnableXRateLimitHeaders string `yaml:"enableXRateLimitHeaders" default:"Off" enum:"Off,DraftVersion03"`
}

// check reports a timeout of 0, with which every request to the service would fail.
func (s *RateLimitService) check(n node) {
	if s.Timeout == 0 {
		n.at("timeout").failf("want a duration above 0")
	}
}

// RateLimitDescriptor identifies a counter in rateLimitService. Requests with the same values
// share it.
type RateLimitDescriptor struct {
	// The descriptor's entries, in order. A descriptor does not apply to a request that lacks a
	// value for one of them.
	Actions []RateLimitAction `yaml:"actions" is:"required"`
}

// check reports a descriptor without actions, which would describe no request.
func (d *RateLimitDescriptor) check(n node) {
	if len(d.Actions) == 0 {
		n.at("actions").failf("want at least one action")
	}
}

// RateLimitAction adds an entry, a key with a value, to a descriptor.
type RateLimitAction struct {
	// The key remote_address with the client's address, as seen behind trustedProxies.
	RemoteAddress *RemoteAddress `yaml:"remoteAddress"`
	// The key masked_remote_address with the client's network.
	MaskedRemoteAddress *MaskedRemoteAddress `yaml:"maskedRemoteAddress"`
	// A key with a header field's value.
	RequestHeaders *RequestHeaderAction `yaml:"requestHeaders"`
	// A fixed key with a fixed value.
	GenericKey *GenericKey `yaml:"genericKey"`
}

func (a *RateLimitAction) oneOf() []string {
	return []string{"remoteAddress", "maskedRemoteAddress", "requestHeaders", "genericKey"}
}

// Key returns the entry's key.
func (a *RateLimitAction) Key() string {
	// Exactly one field is set.
	switch {
	case a.RemoteAddress != nil:
		return "remote_address"
	case a.MaskedRemoteAddress != nil:
		return "masked_remote_address"
	case a.RequestHeaders != nil:
		return a.RequestHeaders.DescriptorKey
	}
	return a.GenericKey.DescriptorKey
}

// RemoteAddress needs no configuration.
type RemoteAddress struct{}

// MaskedRemoteAddress says how much of an address identifies its network.
type MaskedRemoteAddress struct {
	// Prefix length for an IPv4 address.
	V4PrefixMaskLen int `yaml:"v4PrefixMaskLen" default:"32" min:"0" max:"32"`
	// Prefix length for an IPv6 address. Most clients own a whole /64.
	V6PrefixMaskLen int `yaml:"v6PrefixMaskLen" default:"64" min:"0" max:"128"`
}

// RequestHeaderAction names a header field and the key for its value.
type RequestHeaderAction struct {
	// Name of the header field. If it occurs several times, its values are joined with commas.
	HeaderName HeaderName `yaml:"headerName" is:"required"`
	// The key.
	DescriptorKey string `yaml:"descriptorKey" is:"required"`
}

// GenericKey is a fixed entry in a descriptor.
type GenericKey struct {
	// The key.
	DescriptorKey string `yaml:"descriptorKey" default:"generic_key"`
	// The value.
	DescriptorValue string `yaml:"descriptorValue" is:"required"`
}

// RateLimitService returns the service that counts the route's requests, or nil if the route has
// no globalRateLimits.
func (r *Route) RateLimitService() *RateLimitService { return r.limiter }

// DescribeLimits describes the route's rate limits. It is empty if there are none.
func (r *Route) DescribeLimits() string {
	var parts []string
	if l := r.RateLimit; l != nil {
		per := strings.ToLower(l.Per)
		if l.Header != "" {
			per = "value of " + string(l.Header)
		}
		parts = append(parts, fmt.Sprintf("%v requests a second per %s", l.RequestsPerSecond, per))
	}
	for _, d := range r.GlobalRateLimits {
		// A descriptor is described by its keys, because the values depend on the request.
		keys := make([]string, 0, len(d.Actions))
		for _, a := range d.Actions {
			key := a.Key()
			if a.GenericKey != nil {
				key += "=" + a.GenericKey.DescriptorValue
			}
			keys = append(keys, key)
		}
		parts = append(parts, fmt.Sprintf("global limit of %s in the domain %s", strings.Join(keys, ", "), r.limiter.Domain))
	}
	return strings.Join(parts, "; ")
}

// checkLimits reports limits without a counting service, and a counting service that cannot speak
// gRPC. n is the root.
func (c *Config) checkLimits(n node, services names) {
	if s := c.RateLimitService; s != nil {
		name := n.at("rateLimitService").at("backendRef").at("name")
		refer(name, "service", s.BackendRef.Name, services)
		counter := c.Service(s.BackendRef.Name)
		// A fixed response, HTTP/1 and a PROXY header all prevent gRPC.
		if counter != nil && (counter.DirectResponse != nil || counter.Protocol == "HTTP1" || counter.ProxyProtocol != nil) {
			name.failf("want a service with endpoints that have gRPC")
		}
		return
	}
	for i := range c.Routes {
		if len(c.Routes[i].GlobalRateLimits) > 0 {
			n.at("routes").item(i).at("globalRateLimits").failf("want rateLimitService in the file, because it counts the requests")
		}
	}
}
