package config

import (
	"fmt"
	"slices"
	"strings"
)

// Route selects requests and specifies how they are treated. Routes are tried in order, and the
// first one that matches is used.
type Route struct {
	// The name, for logs, metrics and gateway explain.
	Name Name `yaml:"name" is:"required"`
	// The names of the listeners. The default is all listeners.
	Listeners []Name `yaml:"listeners"`
	// Names by which clients reach the route. The default is all names.
	Hostnames []Hostname `yaml:"hostnames"`
	// Conditions, one of which must hold. The default is every request.
	Matches []Match `yaml:"matches"`

	// The services of the route, which share the requests by weight.
	BackendRefs []BackendRef `yaml:"backendRefs"`
	// Answers with another location.
	RequestRedirect *RequestRedirect `yaml:"requestRedirect"`
	// Answers with a fixed response.
	DirectResponse *DirectResponse `yaml:"directResponse"`

	// Limits the time of a request up to its response headers.
	Timeouts Timeouts `yaml:"timeouts"`
	// Repeats failed requests, within the retry budget of the gateway.
	Retry Retry `yaml:"retry"`
	// Sends a second copy of a slow request to another endpoint, within the retry budget.
	Hedge *Hedge `yaml:"hedge"`
	// Limits the rate of requests; further ones get the status 429.
	RateLimit *RateLimit `yaml:"rateLimit"`
	// Limits the concurrent requests; further ones get the status 503. 0 means no limit.
	MaxRequests int `yaml:"maxRequests" min:"0" max:"10000000"`
	// Changes the headers of requests to the services.
	RequestHeaderModifier HeaderModifier `yaml:"requestHeaderModifier"`
	// Changes the headers of responses.
	ResponseHeaderModifier HeaderModifier `yaml:"responseHeaderModifier"`
	// Changes the host and the path of requests to the services.
	URLRewrite *URLRewrite `yaml:"urlRewrite"`
	// Sends copies of requests to other services and discards the responses.
	RequestMirrors []RequestMirror `yaml:"requestMirrors"`
	// Injects delays and errors, to test clients.
	Faults []Fault `yaml:"faults"`
	// Answers preflight requests of browsers and allows other origins.
	CORS *CORS `yaml:"cors"`
	// Asks a service whether a request is allowed.
	ExternalAuth *ExternalAuth `yaml:"externalAuth"`

	version string
}

// Version returns a text that changes with the route and the services to which it refers.
func (r *Route) Version() string { return r.version }

// services returns the names of the services to which the route refers.
func (r *Route) services() (all []Name) {
	for _, b := range r.BackendRefs {
		all = append(all, b.Name)
	}
	for _, m := range r.RequestMirrors {
		all = append(all, m.BackendRef.Name)
	}
	if r.ExternalAuth != nil {
		all = append(all, r.ExternalAuth.BackendRef.Name)
	}
	return all
}

func (r *Route) oneOf() []string { return []string{"backendRefs", "requestRedirect", "directResponse"} }

func (r *Route) check(n node) {
	if n.has("backendRefs") && r.totalWeight() == 0 {
		n.at("backendRefs").failf("want at least one service with a weight above 0")
	}
	if to := r.URLRewrite; to != nil && to.Path != nil && to.Path.ReplacePrefixMatch != nil {
		r.needPrefix(n.at("urlRewrite").at("path").at("replacePrefixMatch"))
	}
	if to := r.RequestRedirect; to != nil && to.Path != nil && to.Path.ReplacePrefixMatch != nil {
		r.needPrefix(n.at("requestRedirect").at("path").at("replacePrefixMatch"))
	}
	total := 0.0
	for _, f := range r.Faults {
		total += f.Percentage
	}
	if total > 100 {
		n.at("faults").failf("want percentages with a sum of at most 100, not %v", total)
	}
	if errs := r.problems(); len(n.mistakes) == 0 {
		for _, err := range errs {
			n.failf("%s", strings.ReplaceAll(err, "\n", "; "))
		}
	}
}

// needPrefix reports a prefix that cannot be replaced.
func (r *Route) needPrefix(n node) {
	if r.Prefix() == "" {
		n.failf("want exactly one match with path: {prefix: ...}, whose prefix is replaced")
	}
}

// Prefix returns the prefix of the only match, or "".
func (r *Route) Prefix() string {
	if len(r.Matches) == 1 && r.Matches[0].Path != nil {
		return string(r.Matches[0].Path.Prefix)
	}
	return ""
}

func (r *Route) totalWeight() (total int) {
	for _, b := range r.BackendRefs {
		total += b.Weight
	}
	return total
}

// Match is a condition on requests. All of its parts must hold.
type Match struct {
	// A condition on the path.
	Path *PathMatch `yaml:"path"`
	// The method.
	Method Method `yaml:"method"`
	// Conditions on header fields, all of which must hold.
	Headers []ValueMatch `yaml:"headers"`
	// Conditions on query parameters, all of which must hold.
	QueryParams []ValueMatch `yaml:"queryParams"`
	// A condition on gRPC calls.
	GRPC *GRPCMatch `yaml:"grpc"`
}

func (m *Match) check(n node) {
	if m.GRPC != nil && (m.Path != nil || m.Method != "") {
		n.at("grpc").failf("grpc excludes path and method, because a gRPC call is a POST to /service/method")
	}
	for i, h := range m.Headers {
		var name HeaderName
		if err := name.parse(h.Name); err != nil {
			n.at("headers").item(i).at("name").failf("want %v", err)
		}
		if strings.EqualFold(h.Name, "host") {
			n.at("headers").item(i).at("name").failf("want hostnames of the route instead of the header Host")
		}
	}
	if len(n.n.Content) == 0 {
		n.failf("want at least one of path, method, headers, queryParams, grpc")
	}
}

// PathMatch is a condition on the path of a request, percent-encoded as sent.
type PathMatch struct {
	// The whole path.
	Exact Path `yaml:"exact"`
	// Segments at the start: /books holds for /books and /books/1, but not for /bookshop.
	Prefix Path `yaml:"prefix"`
	// A path with placeholders for segments: /books/{id}.
	Pattern Pattern `yaml:"pattern"`
	// A regular expression of Go for the whole path.
	RegularExpression Regex `yaml:"regularExpression"`
}

func (p *PathMatch) oneOf() []string {
	return []string{"exact", "prefix", "pattern", "regularExpression"}
}

// ValueMatch is a condition on a header field or a query parameter.
type ValueMatch struct {
	// The name of the header field or parameter.
	Name string `yaml:"name" is:"required"`
	// The whole value.
	Exact *Text `yaml:"exact"`
	// The start of the value.
	Prefix string `yaml:"prefix"`
	// A regular expression of Go for the whole value.
	RegularExpression Regex `yaml:"regularExpression"`
	// True holds for every value, also an empty one. False holds if the name is absent.
	Present *bool `yaml:"present"`
}

func (v *ValueMatch) oneOf() []string {
	return []string{"exact", "prefix", "regularExpression", "present"}
}

// GRPCMatch is a condition on gRPC calls.
type GRPCMatch struct {
	// The service with its package: books.v1.Books. The default is every service.
	Service string `yaml:"service"`
	// The method: GetBook. The default is every method.
	Method string `yaml:"method"`
}

func (g *GRPCMatch) check(n node) {
	for name, text := range map[string]string{"service": g.Service, "method": g.Method} {
		if strings.ContainsAny(text, "/? ") {
			n.at(name).failf("want a name without '/', such as books.v1.Books")
		}
	}
}

// BackendRef is a service with its share of the requests.
type BackendRef struct {
	// The name of the service.
	Name Name `yaml:"name" is:"required"`
	// The share is the weight divided by the sum of all weights.
	Weight int `yaml:"weight" default:"1" min:"0" max:"1000000"`
}

// Timeouts limit the time up to the response headers. A response body, a stream or a WebSocket may
// take longer.
type Timeouts struct {
	// For the request with all its attempts. 0s means no limit.
	Request Duration `yaml:"request" default:"60s"`
	// For each attempt. 0s means no limit.
	BackendRequest Duration `yaml:"backendRequest"`
}

func (t *Timeouts) check(n node) {
	if t.Request > 0 && t.BackendRequest > t.Request {
		n.at("backendRequest").failf("want at most request, which is %v", t.Request.D())
	}
}

// Retry repeats failed requests.
type Retry struct {
	// Retries after the first attempt. 0 means none.
	Attempts int `yaml:"attempts" default:"2" min:"0" max:"99"`
	// The response statuses that are failures. The default is 500 to 599.
	Codes []Status `yaml:"codes"`
	// Repeats also requests that are not idempotent, such as POST. A request may then be
	// processed twice.
	NonIdempotent bool `yaml:"nonIdempotent"`
}

// Hedge sends a copy of a slow request to another endpoint.
type Hedge struct {
	// The wait for response headers before the copy is sent.
	Delay Duration `yaml:"delay" is:"required"`
}

func (h *Hedge) check(n node) {
	if h.Delay == 0 {
		n.at("delay").failf("want a duration above 0")
	}
}

// RateLimit is a token bucket.
type RateLimit struct {
	// The rate of requests.
	RequestsPerSecond float64 `yaml:"requestsPerSecond" is:"required" min:"0.001" max:"10000000"`
	// Requests at once. The default is the requests of one second, at least 1.
	Burst int `yaml:"burst" min:"0" max:"10000000"`
	// The requests that share a bucket: all of the route, or those of a client address.
	Per string `yaml:"per" default:"Route" enum:"Route,Client"`
}

// Bucket returns the size of the bucket.
func (r *RateLimit) Bucket() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return max(1, int(r.RequestsPerSecond))
}

// HeaderModifier changes header fields. Add is applied first, then set, then remove.
type HeaderModifier struct {
	// Adds a value to those of the name.
	Add []Header `yaml:"add"`
	// Replaces all values of the name.
	Set []Header `yaml:"set"`
	// Removes all values of the name.
	Remove []HeaderName `yaml:"remove"`
}

func (m *HeaderModifier) check(n node) {
	for list, headers := range map[string][]Header{"add": m.Add, "set": m.Set} {
		for i, h := range headers {
			one := HeaderModifier{Add: []Header{h}}
			if list == "set" {
				one = HeaderModifier{Set: []Header{h}}
			}
			if err := one.mutation().Validate(); err != nil {
				n.at(list).item(i).at("name").failf("cannot be changed: %v", err)
			}
		}
	}
}

// Header is a header field.
type Header struct {
	// The name.
	Name HeaderName `yaml:"name" is:"required"`
	// The value.
	Value HeaderValue `yaml:"value" is:"required"`
}

// PathModifier changes a path.
type PathModifier struct {
	// Replaces the whole path.
	ReplaceFullPath Path `yaml:"replaceFullPath"`
	// Replaces the prefix of the match. /v1 with the match {prefix: /books} changes /books/1 to
	// /v1/1.
	ReplacePrefixMatch *Path `yaml:"replacePrefixMatch"`
}

func (p *PathModifier) oneOf() []string { return []string{"replaceFullPath", "replacePrefixMatch"} }

// RequestRedirect answers with another location. Absent parts are those of the request.
type RequestRedirect struct {
	// The scheme. A redirect to another scheme uses its default port.
	Scheme string `yaml:"scheme" enum:"http,https"`
	// The host.
	Hostname Hostname `yaml:"hostname"`
	// The port.
	Port int `yaml:"port" min:"1" max:"65535"`
	// The path.
	Path *PathModifier `yaml:"path"`
	// The status.
	StatusCode string `yaml:"statusCode" default:"302" enum:"301,302,303,307,308"`
}

func (r *RequestRedirect) check(n node) {
	if r.Scheme == "" && r.Hostname == "" && r.Port == 0 && r.Path == nil {
		n.failf("want at least one of scheme, hostname, port, path")
	}
	if strings.HasPrefix(string(r.Hostname), "*") {
		n.at("hostname").failf("want a name without *")
	}
}

// URLRewrite changes requests to the services.
type URLRewrite struct {
	// The host.
	Hostname Hostname `yaml:"hostname"`
	// The path.
	Path *PathModifier `yaml:"path"`
}

func (u *URLRewrite) check(n node) {
	if u.Hostname == "" && u.Path == nil {
		n.failf("want at least one of hostname, path")
	}
	if strings.HasPrefix(string(u.Hostname), "*") {
		n.at("hostname").failf("want a name without *")
	}
}

// DirectResponse is a fixed response.
type DirectResponse struct {
	// The status.
	Status Status `yaml:"status" is:"required"`
	// The body.
	Body Text `yaml:"body"`
	// The content type of the body.
	ContentType HeaderValue `yaml:"contentType" default:"text/plain; charset=utf-8"`
}

// RequestMirror sends copies of requests to a service.
type RequestMirror struct {
	// The service of the copies. It should receive no other requests.
	BackendRef BackendName `yaml:"backendRef" is:"required"`
	// The share of the requests that are copied.
	Percent float64 `yaml:"percent" default:"100" min:"0.001" max:"100"`
	// The largest body of a request that is copied.
	MaxBodyBytes int `yaml:"maxBodyBytes" default:"65536" min:"0" max:"16777216"`
}

// BackendName refers to a service.
type BackendName struct {
	// The name of the service.
	Name Name `yaml:"name" is:"required"`
}

// Fault injects a delay, an error, or both.
type Fault struct {
	// The share of the requests.
	Percentage float64 `yaml:"percentage" default:"100" min:"0.001" max:"100"`
	// The delay before the request is forwarded or answered.
	FixedDelay Duration `yaml:"fixedDelay"`
	// Answers with an error.
	Abort *Abort `yaml:"abort"`
	// The fault ends this long after the gateway has read it.
	TTL Duration `yaml:"ttl" default:"10m"`
}

func (f *Fault) check(n node) {
	if f.FixedDelay == 0 && f.Abort == nil {
		n.failf("want at least one of fixedDelay, abort")
	}
	if f.TTL == 0 {
		n.at("ttl").failf("want a duration above 0, because a fault must end by itself")
	}
}

// Abort is the error of a fault.
type Abort struct {
	// The status of the response.
	HTTPStatus int `yaml:"httpStatus" is:"required" min:"400" max:"599"`
	// The status of gRPC calls. The default corresponds to httpStatus.
	GRPCStatus int `yaml:"grpcStatus" min:"0" max:"16"`
}

// CORS allows browsers to use the route from pages of other origins.
type CORS struct {
	// The allowed origins: https://books.example, https://*.example, or "*".
	AllowOrigins []Origin `yaml:"allowOrigins" is:"required"`
	// The allowed methods. The default is GET, HEAD and POST.
	AllowMethods []Method `yaml:"allowMethods"`
	// The allowed request header fields.
	AllowHeaders []HeaderName `yaml:"allowHeaders"`
	// The response header fields that scripts may read.
	ExposeHeaders []HeaderName `yaml:"exposeHeaders"`
	// Allows cookies and other credentials.
	AllowCredentials bool `yaml:"allowCredentials"`
	// The time for which a browser caches the answer to a preflight request.
	MaxAge Duration `yaml:"maxAge" default:"5s"`
}

func (c *CORS) check(n node) {
	if len(c.AllowOrigins) == 0 {
		n.at("allowOrigins").failf("want at least one origin")
	}
	if c.AllowCredentials && slices.Contains(c.AllowOrigins, "*") {
		n.at("allowOrigins").failf(`want a list of origins beside allowCredentials, because "*" would allow every page`)
	}
}

// ExternalAuth asks a service whether a request is allowed. It sends a GET request without a body.
// A response 2xx allows the request. Any other response is the response of the route. If the
// service cannot be asked, the request is rejected with the status 503.
type ExternalAuth struct {
	// The service that is asked.
	BackendRef BackendName `yaml:"backendRef" is:"required"`
	// The path of the question.
	Path Path `yaml:"path" default:"/"`
	// The time limit for the response of the service that decides.
	Timeout Duration `yaml:"timeout" default:"1s"`
	// The header fields of the request that the question has, beside X-Forwarded-Method,
	// -Proto, -Host, -Uri and -For.
	AllowedRequestHeaders []HeaderName `yaml:"allowedRequestHeaders"`
	// The header fields of the answer that are set in the allowed request. They are removed
	// from the requests of clients.
	AllowedResponseHeaders []HeaderName `yaml:"allowedResponseHeaders"`
}

func (e *ExternalAuth) check(n node) {
	if e.Timeout == 0 {
		n.at("timeout").failf("want a duration above 0")
	}
}

// RetryBudget limits the retries and hedges of all routes together.
type RetryBudget struct {
	// Retries for each hundred requests.
	Percent float64 `yaml:"percent" default:"20" min:"0" max:"1000"`
	// Retries per second that are always allowed.
	MinRetryRate int `yaml:"minRetryRate" default:"10" min:"0" max:"1000000"`
	// The time for which a request counts.
	Interval Duration `yaml:"interval" default:"10s"`
}

func (b *RetryBudget) check(n node) {
	if d := b.Interval.D().Seconds(); d < 1 || d > 60 {
		n.at("interval").failf("want a duration from 1s to 60s")
	}
}

// Describe returns the action of the route: its services with their shares, or its response.
func (r *Route) Describe() string {
	switch {
	case r.DirectResponse != nil:
		return fmt.Sprintf("direct response %d", r.DirectResponse.Status)
	case r.RequestRedirect != nil:
		return "redirect " + r.RequestRedirect.StatusCode
	}
	var parts []string
	for _, b := range r.BackendRefs {
		parts = append(parts, fmt.Sprintf("%s %.4g%%", b.Name, 100*float64(b.Weight)/float64(r.totalWeight())))
	}
	return strings.Join(parts, ", ")
}
