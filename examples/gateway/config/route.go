package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Route selects requests and specifies where they are sent and how. Routes are tried in
// order, and the first one that matches is used.
type Route struct {
	// The name of the route in logs, in metrics and in the output of the command explain.
	Name Name `yaml:"name" is:"required"`
	// The names of the listeners that the route belongs to. The default is all listeners.
	Listeners []Name `yaml:"listeners"`
	// The host names that the route serves. The default is all host names.
	Hostnames []Hostname `yaml:"hostnames"`
	// Conditions on requests. The route matches a request if at least one of them holds.
	// Without conditions, it matches all requests.
	Matches []Match `yaml:"matches"`

	// The services to which the requests are sent. They share the requests by weight.
	BackendRefs []BackendRef `yaml:"backendRefs"`
	// Responds with a redirect to another location.
	RequestRedirect *RequestRedirect `yaml:"requestRedirect"`
	// Responds with a fixed response.
	DirectResponse *DirectResponse `yaml:"directResponse"`

	// The time limits of a request and of each attempt, up to the response headers.
	Timeouts Timeouts `yaml:"timeouts"`
	// Retries failed requests, within the retry budget of the gateway.
	Retry Retry `yaml:"retry"`
	// Sends a copy of a slow request to another endpoint, within the retry budget of the
	// gateway.
	Hedge *Hedge `yaml:"hedge"`
	// The maximum rate of requests. A request above the rate gets the status 429. Absent
	// means no limit.
	RateLimit *RateLimit `yaml:"rateLimit"`
	// The maximum number of concurrent requests. A request above the maximum gets the
	// status 503. 0 means no limit.
	MaxRequests int `yaml:"maxRequests" min:"0" max:"10000000"`
	// Changes the headers of the requests that are sent to the services.
	RequestHeaderModifier HeaderModifier `yaml:"requestHeaderModifier"`
	// Changes the headers of the responses that are sent to the clients.
	ResponseHeaderModifier HeaderModifier `yaml:"responseHeaderModifier"`
	// Changes the host or the path of the requests that are sent to the services.
	URLRewrite *URLRewrite `yaml:"urlRewrite"`
	// Sends copies of requests to other services and discards their responses.
	RequestMirrors []RequestMirror `yaml:"requestMirrors"`
	// Injects delays and errors into requests, to test clients.
	Faults []Fault `yaml:"faults"`
	// Responds to preflight requests of browsers, and allows pages of other origins to use
	// the route.
	CORS *CORS `yaml:"cors"`
	// Asks a service whether each request is allowed.
	ExternalAuth *ExternalAuth `yaml:"externalAuth"`

	version string
}

// Version returns a text that identifies the configuration of the route and of all services
// to which the route refers. The text changes when one of these configurations changes.
func (r *Route) Version() string { return r.version }

// Services returns the names of the services to which the route refers. A name may occur
// more than once.
func (r *Route) Services() (all []Name) {
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
	before := len(n.Mistakes)
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
	if len(n.Mistakes) == before {
		for _, err := range r.problems() {
			n.failf("%s", strings.ReplaceAll(err, "\n", "; "))
		}
	}
}

// needPrefix reports a mistake at n, the node of a field replacePrefixMatch, unless the
// route has exactly one match, with a path prefix. The field replaces that prefix.
func (r *Route) needPrefix(n node) {
	if r.Prefix() == "" {
		n.failf("want exactly one match with path: {prefix: ...}, because its prefix is replaced")
	}
}

// Prefix returns the path prefix of the only match of the route. It returns "" if the match
// has no prefix, or if the route does not have exactly one match.
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

// Match is a condition on requests. A request must meet the condition of each field that is
// set.
type Match struct {
	// A condition on the path of the request.
	Path *PathMatch `yaml:"path"`
	// The method of the request. The default is every method.
	Method Method `yaml:"method"`
	// Conditions on header fields. All of them must hold.
	Headers []ValueMatch `yaml:"headers"`
	// Conditions on query parameters. All of them must hold.
	QueryParams []ValueMatch `yaml:"queryParams"`
	// A condition on the service and the method of a gRPC call.
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

// PathMatch is a condition on the path of a request. The path is compared in its normal form, which
// is also sent to the services: letters, digits, '-', '.', '_' and '~' are decoded, and the segments
// "." and ".." are removed. Other characters keep their percent-encoding.
type PathMatch struct {
	// The whole path, such as /books/1.
	Exact Path `yaml:"exact"`
	// The first segments of the path: /books matches /books and /books/1, but not
	// /bookshop.
	Prefix Path `yaml:"prefix"`
	// The whole path, with placeholders for segments: /books/{id}.
	Pattern Pattern `yaml:"pattern"`
	// A regular expression in the syntax of Go that must match the whole path.
	RegularExpression Regex `yaml:"regularExpression"`
}

func (p *PathMatch) oneOf() []string {
	return []string{"exact", "prefix", "pattern", "regularExpression"}
}

// ValueMatch is a condition on the value of a header field or a query parameter.
type ValueMatch struct {
	// The name of the header field or the query parameter.
	Name string `yaml:"name" is:"required"`
	// The whole value. It may be empty.
	Exact *Text `yaml:"exact"`
	// The beginning of the value.
	Prefix string `yaml:"prefix"`
	// A regular expression in the syntax of Go that must match the whole value.
	RegularExpression Regex `yaml:"regularExpression"`
	// True requires that the field or parameter is present, even with an empty value. False
	// requires that it is absent.
	Present *bool `yaml:"present"`
}

func (v *ValueMatch) oneOf() []string {
	return []string{"exact", "prefix", "regularExpression", "present"}
}

// GRPCMatch is a condition on the service and the method of a gRPC call.
type GRPCMatch struct {
	// The full name of the gRPC service: books.v1.Books. The default is every service.
	Service string `yaml:"service"`
	// The name of the method without its service: GetBook. The default is every method.
	Method string `yaml:"method"`
}

func (g *GRPCMatch) check(n node) {
	for name, text := range map[string]string{"service": g.Service, "method": g.Method} {
		if strings.ContainsAny(text, "/? ") {
			n.at(name).failf("want a name without '/', such as books.v1.Books")
		}
	}
}

// BackendRef refers to a service that gets a share of the requests of a route.
type BackendRef struct {
	// The name of the service.
	Name Name `yaml:"name" is:"required"`
	// The weight of the service. Its share of the requests is the weight divided by the sum
	// of the weights of the route. 0 means no requests.
	Weight int `yaml:"weight" default:"1" min:"0" max:"1000000"`
}

// Timeouts limit the time up to the response headers. They do not limit the body of a
// response, so a stream or a WebSocket may take longer.
type Timeouts struct {
	// The time limit of a request, with all its attempts. 0s means no limit.
	Request Duration `yaml:"request" default:"60s"`
	// The time limit of each attempt. 0s means no limit.
	BackendRequest Duration `yaml:"backendRequest"`
}

func (t *Timeouts) check(n node) {
	if t.Request > 0 && t.BackendRequest > t.Request {
		n.at("backendRequest").failf("want at most request, which is %v", t.Request.D())
	}
}

// Retry specifies which failed requests are sent again, and how often.
type Retry struct {
	// The maximum number of retries after the first attempt. 0 disables retries.
	Attempts int `yaml:"attempts" default:"2" min:"0" max:"99"`
	// The response statuses that count as failures and are retried. The default is 500 to 599.
	Codes []Status `yaml:"codes"`
	// True also retries requests that are not idempotent, such as POST. A service may then
	// process a request twice.
	NonIdempotent bool `yaml:"nonIdempotent"`
}

// Hedge sends a copy of a slow request to another endpoint. The first response is used.
type Hedge struct {
	// How long to wait for the response headers before the copy is sent.
	Delay Duration `yaml:"delay" is:"required"`
}

func (h *Hedge) check(n node) {
	if h.Delay == 0 {
		n.at("delay").failf("want a duration above 0")
	}
}

// RateLimit limits the rate of requests by a token bucket.
type RateLimit struct {
	// The number of requests a second that are allowed on average.
	RequestsPerSecond float64 `yaml:"requestsPerSecond" is:"required" min:"0.001" max:"10000000"`
	// The size of the token bucket, which is the number of requests that are allowed at
	// once. 0, the default, means requestsPerSecond, but at least 1.
	Burst int `yaml:"burst" min:"0" max:"10000000"`
	// Route applies the limit to all requests of the route together. Client applies it to
	// the requests of each client address, or of each /64 prefix for IPv6.
	Per string `yaml:"per" default:"Route" enum:"Route,Client"`
}

// Bucket returns the size of the token bucket: burst, or its default if burst is 0.
func (r *RateLimit) Bucket() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return max(1, int(r.RequestsPerSecond))
}

// HeaderModifier changes header fields. It applies add first, then set, and then remove.
type HeaderModifier struct {
	// Adds a value to the field and keeps its other values.
	Add []Header `yaml:"add"`
	// Sets a value of the field and removes its other values.
	Set []Header `yaml:"set"`
	// Removes the fields with these names.
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

// Header is the name and the value of a header field.
type Header struct {
	// The name of the header field.
	Name HeaderName `yaml:"name" is:"required"`
	// The value of the header field.
	Value HeaderValue `yaml:"value" is:"required"`
}

// PathModifier replaces the path of a request or its prefix.
type PathModifier struct {
	// The path that replaces the whole path.
	ReplaceFullPath Path `yaml:"replaceFullPath"`
	// The new prefix of the path. It replaces the prefix in the match of the route. With
	// the match {prefix: /books}, the value /v1 changes /books/1 to /v1/1.
	ReplacePrefixMatch *Path `yaml:"replacePrefixMatch"`
}

func (p *PathModifier) oneOf() []string { return []string{"replaceFullPath", "replacePrefixMatch"} }

// RequestRedirect responds with a redirect. Parts of the location that are not set here are
// copied from the URL of the request. At least one field must be set.
type RequestRedirect struct {
	// The scheme of the location. If it differs from the scheme of the request and port is
	// not set, the location has the default port of the new scheme.
	Scheme string `yaml:"scheme" enum:"http,https"`
	// The host name of the location.
	Hostname Hostname `yaml:"hostname"`
	// The port of the location.
	Port int `yaml:"port" min:"1" max:"65535"`
	// The path of the location.
	Path *PathModifier `yaml:"path"`
	// The status of the response.
	StatusCode string `yaml:"statusCode" default:"302" enum:"301,302,303,307,308"`
}

func (r *RequestRedirect) check(n node) {
	if len(n.n.Content) == 0 {
		n.failf("want at least one of scheme, hostname, port, path, statusCode")
	}
	if strings.HasPrefix(string(r.Hostname), "*") {
		n.at("hostname").failf("want a name without *")
	}
}

// Status returns the status of the response as a number.
func (r *RequestRedirect) Status() int {
	status, _ := strconv.Atoi(r.StatusCode) // one of a list
	return status
}

// URLRewrite changes the host or the path of requests that are sent to the services.
type URLRewrite struct {
	// The host name that replaces the host of the request.
	Hostname Hostname `yaml:"hostname"`
	// The path that replaces the path of the request.
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

// DirectResponse is a fixed response, which the gateway sends without a request to an
// endpoint.
type DirectResponse struct {
	// The status of the response.
	Status Status `yaml:"status" is:"required"`
	// The body of the response. The default is an empty body.
	Body Text `yaml:"body"`
	// The content type of the body.
	ContentType HeaderValue `yaml:"contentType" default:"text/plain; charset=utf-8"`
}

// RequestMirror sends copies of requests to a service and discards the responses.
type RequestMirror struct {
	// The service that receives the copies. It should receive no other requests.
	BackendRef BackendName `yaml:"backendRef" is:"required"`
	// The percentage of the requests that are copied.
	Percent float64 `yaml:"percent" default:"100" min:"0.001" max:"100"`
	// The size of the largest request body that is copied, in bytes. A request with a
	// larger body is not copied. 0 copies only requests without a body.
	MaxBodyBytes int `yaml:"maxBodyBytes" default:"65536" min:"0" max:"16777216"`
}

// BackendName refers to a service by its name.
type BackendName struct {
	// The name of the service.
	Name Name `yaml:"name" is:"required"`
}

// Fault injects a delay, an error, or a delay followed by an error.
type Fault struct {
	// The percentage of the requests that get the fault.
	Percentage float64 `yaml:"percentage" default:"100" min:"0.001" max:"100"`
	// The delay before the request is forwarded, or before the error of abort is sent. 0s
	// means no delay.
	FixedDelay Duration `yaml:"fixedDelay"`
	// The error that is sent as the response. Absent means that the request is forwarded.
	Abort *Abort `yaml:"abort"`
	// How long the fault is injected, from the time when the gateway loads the
	// configuration.
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

// Abort is the response of a fault that injects an error.
type Abort struct {
	// The HTTP status of the response.
	HTTPStatus int `yaml:"httpStatus" is:"required" min:"400" max:"599"`
	// The gRPC status for gRPC calls. 0, the default, means the gRPC status that
	// corresponds to httpStatus.
	GRPCStatus int `yaml:"grpcStatus" min:"0" max:"16"`
}

// CORS allows pages of other origins to use the route in a browser.
type CORS struct {
	// The allowed origins: https://books.example, https://*.example, or "*" for all
	// origins.
	AllowOrigins []Origin `yaml:"allowOrigins" is:"required"`
	// The allowed methods. "*" means any method. The default is GET, HEAD and POST.
	AllowMethods []Method `yaml:"allowMethods"`
	// The request header fields that pages may set. "*" means any field.
	AllowHeaders []HeaderName `yaml:"allowHeaders"`
	// The response header fields that scripts of pages may read.
	ExposeHeaders []HeaderName `yaml:"exposeHeaders"`
	// True allows pages to send cookies and other credentials.
	AllowCredentials bool `yaml:"allowCredentials"`
	// How long a browser caches the response to a preflight request.
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

// ExternalAuth asks a service whether a request is allowed. It sends a GET request without
// a body to the service. A response of the service with a status 2xx allows the request.
// Any other response of the service is sent to the client. If the service cannot be called,
// the client gets the status 503.
type ExternalAuth struct {
	// The service that decides.
	BackendRef BackendName `yaml:"backendRef" is:"required"`
	// The path of the GET request to the service that decides.
	Path Path `yaml:"path" default:"/"`
	// The time limit for the response of the service that decides.
	Timeout Duration `yaml:"timeout" default:"1s"`
	// The header fields that are copied from the request to the GET request. The GET
	// request also has X-Forwarded-Method, -Proto, -Host, -Uri and -For.
	AllowedRequestHeaders []HeaderName `yaml:"allowedRequestHeaders"`
	// The header fields that are copied from the response of the service to the allowed
	// request. Fields of the client with these names are removed, also if they have underscores
	// instead of dashes.
	AllowedResponseHeaders []HeaderName `yaml:"allowedResponseHeaders"`
}

func (e *ExternalAuth) check(n node) {
	if e.Timeout == 0 {
		n.at("timeout").failf("want a duration above 0")
	}
}

// RetryBudget limits the retries and hedges of all routes together. The limit is
// minRetryRate retries per second plus percent of the requests.
type RetryBudget struct {
	// The number of retries that are allowed for each hundred requests.
	Percent float64 `yaml:"percent" default:"20" min:"0" max:"1000"`
	// The number of retries per second that are allowed in addition, without regard to the
	// number of requests.
	MinRetryRate int `yaml:"minRetryRate" default:"10" min:"0" max:"1000000"`
	// The period over which the requests are counted for percent, from 1s to 60s.
	Interval Duration `yaml:"interval" default:"10s"`
}

func (b *RetryBudget) check(n node) {
	if d := b.Interval.D().Seconds(); d < 1 || d > 60 {
		n.at("interval").failf("want a duration from 1s to 60s")
	}
}

// Describe returns a text that describes where the route sends requests: its services with
// their shares, a redirect, or a fixed response.
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
