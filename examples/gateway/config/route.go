package config

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// Route selects requests and says where and how to send them. Routes are tried in order, and the
// first match wins.
type Route struct {
	// How logs, metrics and the command explain refer to the route.
	Name Name `yaml:"name" is:"required"`
	// Names of the listeners that use the route. The default is all listeners.
	Listeners []Name `yaml:"listeners"`
	// Host names that the route serves. The default is all host names.
	Hostnames []Hostname `yaml:"hostnames"`
	// Conditions on requests, of which at least one must hold. Without conditions, the route
	// matches all requests.
	Matches []Match `yaml:"matches"`

	// Services that share the requests by weight. If a service is down, its share fails.
	BackendRefs []BackendRef `yaml:"backendRefs"`
	// Responds with a redirect to another location.
	RequestRedirect *RequestRedirect `yaml:"requestRedirect"`
	// Responds with a fixed response.
	DirectResponse *DirectResponse `yaml:"directResponse"`
	// Responds with files from a folder.
	StaticFiles *StaticFiles `yaml:"staticFiles"`

	// How long to wait for response headers, for the whole request and for each attempt.
	Timeouts Timeouts `yaml:"timeouts"`
	// Retries failed requests, within the gateway's retry budget.
	Retry Retry `yaml:"retry"`
	// Sends a copy of a slow request to another endpoint, within the gateway's retry budget.
	Hedge *Hedge `yaml:"hedge"`
	// Maximum rate of requests. Requests above it get the status 429. Absent means no limit.
	RateLimit *RateLimit `yaml:"rateLimit"`
	// Limits that rateLimitService counts, over all gateways that use it. Requests above a limit
	// get the status 429.
	GlobalRateLimits []RateLimitDescriptor `yaml:"globalRateLimits"`
	// Maximum number of concurrent requests. Further requests get the status 503. 0 means no
	// limit.
	MaxRequests int `yaml:"maxRequests" min:"0" max:"10000000"`
	// Changes request headers before they reach a service.
	RequestHeaderModifier HeaderModifier `yaml:"requestHeaderModifier"`
	// Changes response headers before they reach a client.
	ResponseHeaderModifier HeaderModifier `yaml:"responseHeaderModifier"`
	// Changes the host or path before a request reaches a service.
	URLRewrite *URLRewrite `yaml:"urlRewrite"`
	// Sends copies of requests to other services and discards their responses.
	RequestMirrors []RequestMirror `yaml:"requestMirrors"`
	// Injects delays and errors into requests, to test clients.
	Faults []Fault `yaml:"faults"`
	// Responds to browsers' preflight requests, and lets pages from other origins use the route.
	CORS *CORS `yaml:"cors"`
	// Asks a service whether each request is allowed.
	ExternalAuth *ExternalAuth `yaml:"externalAuth"`
	Access

	condition profiles.Match    // combines listeners, hostnames and matches
	labels    map[string]string // for tap
	limiter   *RateLimitService // nil without globalRateLimits
}

// Services returns the names of all services that the route refers to. A name may occur more than
// once.
func (r *Route) Services() []Name {
	all := make([]Name, 0, len(r.BackendRefs)+len(r.RequestMirrors)+2)
	for _, b := range r.BackendRefs {
		all = append(all, b.Name)
	}
	for _, m := range r.RequestMirrors {
		all = append(all, m.BackendRef.Name)
	}
	if r.ExternalAuth != nil {
		all = append(all, r.ExternalAuth.BackendRef.Name)
	}
	if r.limiter != nil {
		all = append(all, r.limiter.BackendRef.Name)
	}
	return all
}

func (r *Route) oneOf() []string {
	return []string{"backendRefs", "requestRedirect", "directResponse", "staticFiles"}
}

// check implements [checked]. It ends with the checks of package profiles, which need a route without other
// mistakes.
func (r *Route) check(n node) {
	mistakes := len(n.Mistakes)
	// With weights of 0 only, no service could be selected.
	if n.has("backendRefs") && r.totalWeight() == 0 {
		n.at("backendRefs").failf("want at least one service with a weight above 0")
	}
	if rewrite := r.URLRewrite; rewrite != nil && rewrite.Path != nil && rewrite.Path.ReplacePrefixMatch != nil {
		r.needPrefix(n.at("urlRewrite").at("path").at("replacePrefixMatch"))
	}
	if redirect := r.RequestRedirect; redirect != nil && redirect.Path != nil && redirect.Path.ReplacePrefixMatch != nil {
		r.needPrefix(n.at("requestRedirect").at("path").at("replacePrefixMatch"))
	}
	// A request gets at most one fault, so the percentages add up.
	total := 0.0
	for _, f := range r.Faults {
		total += f.Percentage
	}
	if total > 100 {
		n.at("faults").failf("want percentages with a sum of at most 100, not %v", total)
	}
	if len(n.Mistakes) == mistakes {
		r.condition = r.match()
		r.labels = r.tapLabels()
		r.checkProfile(n)
	}
}

// needPrefix reports a mistake at n, a replacePrefixMatch field, unless the route has exactly one
// match, with a path prefix for the field to replace.
func (r *Route) needPrefix(n node) {
	if r.Prefix() == "" {
		n.failf("want exactly one match with path: {prefix: ...}, because its prefix is replaced")
	}
}

// Prefix returns the path prefix in the route's only match. It returns "" if there is no prefix,
// or not exactly one match.
func (r *Route) Prefix() string {
	if len(r.Matches) == 1 && r.Matches[0].Path != nil {
		return string(r.Matches[0].Path.Prefix)
	}
	return ""
}

// totalWeight returns the sum of the backends' weights.
func (r *Route) totalWeight() (total int) {
	for _, b := range r.BackendRefs {
		total += b.Weight
	}
	return total
}

// Match is a condition on requests. A request must meet every field that is set.
type Match struct {
	// Condition on the path.
	Path *PathMatch `yaml:"path"`
	// The request's method. The default is every method.
	Method Method `yaml:"method"`
	// Conditions on header fields. All of them must hold.
	Headers []ValueMatch `yaml:"headers"`
	// Conditions on query parameters. All of them must hold.
	QueryParams []ValueMatch `yaml:"queryParams"`
	// Condition on a gRPC call's service and method.
	GRPC *GRPCMatch `yaml:"grpc"`
	// Ranges of client addresses, one of which must contain the client's.
	ClientCIDRs []Prefix `yaml:"clientCIDRs"`
}

// check implements [checked]. A match needs at least one condition, and those on gRPC exclude others.
func (m *Match) check(n node) {
	if m.GRPC != nil && (m.Path != nil || m.Method != "") {
		n.at("grpc").failf("grpc excludes path and method, because a gRPC call is a POST to /service/method")
	}
	// The names of query parameters are free, but those of header fields are not.
	for i, h := range m.Headers {
		var name HeaderName
		if err := name.parse(h.Name); err != nil {
			n.at("headers").item(i).at("name").failf("want %v", err)
		}
		if strings.EqualFold(h.Name, "host") {
			n.at("headers").item(i).at("name").failf("want hostnames of the route instead of the header Host")
		}
	}
	// The file's node tells whether any field is set.
	if len(n.n.Content) == 0 {
		n.failf("want at least one of path, method, headers, queryParams, grpc, clientCIDRs")
	}
}

// PathMatch is a condition on the path in its normal form, which services also receive: letters,
// digits, '-', '.', '_' and '~' are decoded, repeated slashes are merged, and the segments "."
// and ".." are removed. Other characters stay percent-encoded. The listener's field path changes
// these rules.
type PathMatch struct {
	// The whole path, such as /books/1.
	Exact Path `yaml:"exact"`
	// The path's first segments: /books matches /books and /books/1, but not /bookshop.
	Prefix Path `yaml:"prefix"`
	// The whole path, with placeholders for segments: /books/{id}.
	Pattern Pattern `yaml:"pattern"`
	// A regular expression in Go syntax that must match the whole path.
	RegularExpression Regex `yaml:"regularExpression"`
}

func (p *PathMatch) oneOf() []string {
	return []string{"exact", "prefix", "pattern", "regularExpression"}
}

// ValueMatch is a condition on a header field's or query parameter's value.
type ValueMatch struct {
	// Name of the header field or query parameter.
	Name string `yaml:"name" is:"required"`
	// The whole value. It may be empty.
	Exact *Text `yaml:"exact"`
	// What the value begins with.
	Prefix string `yaml:"prefix"`
	// A regular expression in Go syntax that must match the whole value.
	RegularExpression Regex `yaml:"regularExpression"`
	// True requires the field or parameter to be present, even if it is empty. False requires it
	// to be absent.
	Present *bool `yaml:"present"`
}

func (v *ValueMatch) oneOf() []string {
	return []string{"exact", "prefix", "regularExpression", "present"}
}

// GRPCMatch is a condition on a gRPC call's service and method.
type GRPCMatch struct {
	// Full name of the gRPC service, such as books.v1.Books. The default is every service.
	Service string `yaml:"service"`
	// Name of the method without its service, such as GetBook. The default is every method.
	Method string `yaml:"method"`
}

// check implements [checked]. Both names are parts of a path, so they cannot contain "/".
func (g *GRPCMatch) check(n node) {
	for name, text := range map[string]string{"service": g.Service, "method": g.Method} {
		if strings.ContainsAny(text, "/? ") {
			n.at(name).failf("want a name without '/', such as books.v1.Books")
		}
	}
}

// BackendRef refers to a service that gets a share of a route's requests.
type BackendRef struct {
	// Name of the service.
	Name Name `yaml:"name" is:"required"`
	// The service's share of the requests is its weight divided by the sum of all weights. 0
	// means no requests.
	Weight int `yaml:"weight" default:"1" min:"0" max:"1000000"`
}

// Timeouts limit how long to wait for response headers. They count from the end of the request,
// or from when the service last accepted a part of the body, so that an upload may take longer.
// They do not limit response bodies, so downloads, streams and WebSockets may take longer too.
type Timeouts struct {
	// Time limit for a request with all its attempts. 0s means no limit.
	Request Duration `yaml:"request" default:"60s"`
	// Time limit for each attempt. 0s means no limit.
	BackendRequest Duration `yaml:"backendRequest"`
}

// check reports a timeout for a backend that could never expire, because the request's own does first.
func (t *Timeouts) check(n node) {
	if t.Request > 0 && t.BackendRequest > t.Request {
		n.at("backendRequest").failf("want at most request, which is %v", t.Request.D())
	}
}

// Retry says which failed requests are sent again, and how often.
type Retry struct {
	// Maximum number of retries after the first attempt. 0 disables retries.
	Attempts int `yaml:"attempts" default:"2" min:"0" max:"99"`
	// Response statuses that count as failures and are retried. The default is 425, 502, 503 and
	// 504, and the gRPC status UNAVAILABLE.
	Codes []Status `yaml:"codes"`
	// True also retries requests that are not idempotent, such as POST. A service may then
	// process a request twice.
	NonIdempotent bool `yaml:"nonIdempotent"`

	classes []profiles.ResponseClass // nil for the defaults of package profiles
}

func (r *Retry) check(node) { r.classes = classesOf(r.Codes) }

// Hedge sends a copy of a slow request to another endpoint, and uses whichever response comes
// first. To keep the load low, only 5 % of the last second's requests, and one per second, are
// copied, and retryBudget applies too. Retries are not copied.
type Hedge struct {
	// How long to wait for response headers before sending the copy.
	Delay Duration `yaml:"delay" is:"required"`
}

// check reports a delay of 0, with which every request would be sent twice at once.
func (h *Hedge) check(n node) {
	if h.Delay == 0 {
		n.at("delay").failf("want a duration above 0")
	}
}

// HeaderModifier changes header fields: first add, then set, and then remove. Values may contain
// variables: {client_ip}, {host}, {listener}, {method}, {path}, {request_id}, {route}, {scheme}.
type HeaderModifier struct {
	// Adds a value and keeps the field's other values.
	Add []Header `yaml:"add"`
	// Sets a value and removes the field's other values.
	Set []Header `yaml:"set"`
	// Removes fields by name.
	Remove []HeaderName `yaml:"remove"`

	mutation  layer.HeaderMutation // the changes for package layer
	variables bool
}

// Mutation returns the changes of m for package layer, with variables as they are in the file.
func (m *HeaderModifier) Mutation() layer.HeaderMutation { return m.mutation }

// HasVariables reports whether any value contains a variable. Generated configurations never do.
func (m *HeaderModifier) HasVariables() bool { return m.variables }

// check implements [checked], and remembers whether a value contains variables.
func (m *HeaderModifier) check(n node) {
	m.mutation = m.convert()
	check := func(list string, i int, value HeaderValue, change layer.HeaderMutation) {
		if n.env != nil && value.hasVariables() { // a generated configuration never contains any
			m.variables = true
			value.checkVariables(n.at(list).item(i).at("value"))
		}
		if err := change.Validate(); err != nil {
			n.at(list).item(i).at("name").failf("cannot be changed: %v", err)
		}
	}
	for i, h := range m.Add {
		check("add", i, h.Value, layer.HeaderMutation{Add: m.mutation.Add[i : i+1]})
	}
	for i, h := range m.Set {
		check("set", i, h.Value, layer.HeaderMutation{Set: m.mutation.Set[i : i+1]})
	}
}

// Header is a header field's name and value.
type Header struct {
	// Name of the header field.
	Name HeaderName `yaml:"name" is:"required"`
	// Value of the header field.
	Value HeaderValue `yaml:"value" is:"required"`
}

// PathModifier replaces a path or its prefix.
type PathModifier struct {
	// Replaces the whole path.
	ReplaceFullPath Path `yaml:"replaceFullPath"`
	// Replaces the prefix in the route's match. If the match is {prefix: /books}, the value /v1
	// changes /books/1 to /v1/1.
	ReplacePrefixMatch *Path `yaml:"replacePrefixMatch"`
}

func (p *PathModifier) oneOf() []string { return []string{"replaceFullPath", "replacePrefixMatch"} }

// RequestRedirect responds with a redirect. What is not set here is copied from the request's
// URL. At least one field must be set.
type RequestRedirect struct {
	// The location's scheme. If it differs from the request's and port is not set, the location
	// uses the new scheme's default port.
	Scheme string `yaml:"scheme" enum:"http,https"`
	// The location's host name.
	Hostname Hostname `yaml:"hostname"`
	// The location's port.
	Port int `yaml:"port" min:"1" max:"65535"`
	// The location's path.
	Path *PathModifier `yaml:"path"`
	// The response status.
	StatusCode string `yaml:"statusCode" default:"302" enum:"301,302,303,307,308"`
}

// check implements [checked]. A redirect changes at least one part of the URL, or sets the status.
func (r *RequestRedirect) check(n node) {
	// The status alone is enough: it redirects to the same URL.
	if len(n.n.Content) == 0 {
		n.failf("want at least one of scheme, hostname, port, path, statusCode")
	}
	if strings.HasPrefix(string(r.Hostname), "*") {
		n.at("hostname").failf("want a name without *")
	}
}

// Status returns the response status as a number.
func (r *RequestRedirect) Status() int {
	status, _ := strconv.Atoi(r.StatusCode) // its values are listed in the tag
	return status
}

// URLRewrite changes a request's host or path before it reaches a service.
type URLRewrite struct {
	// Replaces the request's host.
	Hostname Hostname `yaml:"hostname"`
	// Replaces the request's path.
	Path *PathModifier `yaml:"path"`
}

// check implements [checked]. A rewrite changes the host, the path or both.
func (u *URLRewrite) check(n node) {
	if u.Hostname == "" && u.Path == nil {
		n.failf("want at least one of hostname, path")
	}
	if strings.HasPrefix(string(u.Hostname), "*") {
		n.at("hostname").failf("want a name without *")
	}
}

// StaticFiles answers GET and HEAD with files from a folder. The request's path, after
// urlRewrite, selects the file. For a folder, that is its index.html. Names that begin with a dot
// are hidden, except .well-known.
type StaticFiles struct {
	// The folder.
	Root string `yaml:"root" is:"required"`
	// Path of the file to use for paths that do not exist, such as /index.html for an application
	// that does its own routing. Absent means the status 404.
	Fallback Path `yaml:"fallback"`
}

// check reports a root that is not an existing folder. A relative one starts at the configuration file.
func (s *StaticFiles) check(n node) {
	s.Root = n.resolve(s.Root)
	if info, err := os.Stat(s.Root); err != nil || !info.IsDir() {
		n.at("root").failf("want a folder")
	}
}

// DirectResponse is a fixed response that the gateway sends without asking an endpoint.
type DirectResponse struct {
	// The response status.
	Status Status `yaml:"status" is:"required"`
	// The response body. The default is empty.
	Body Text `yaml:"body"`
	// The body's content type.
	ContentType HeaderValue `yaml:"contentType" default:"text/plain; charset=utf-8"`
}

// RequestMirror sends copies of requests to a service and ignores the responses.
type RequestMirror struct {
	// The service that receives the copies. It should receive no other requests.
	BackendRef BackendName `yaml:"backendRef" is:"required"`
	// Percentage of requests to copy.
	Percent float64 `yaml:"percent" default:"100" min:"0.001" max:"100"`
	// Size of the largest request body to copy, in bytes. Requests with larger bodies are not
	// copied. 0 copies only requests without a body.
	MaxBodyBytes int `yaml:"maxBodyBytes" default:"65536" min:"0" max:"16777216"`
}

// BackendName refers to a service by its name.
type BackendName struct {
	// Name of the service.
	Name Name `yaml:"name" is:"required"`
}

// Fault injects a delay, an error, or a delay followed by an error.
type Fault struct {
	// Percentage of requests that are affected.
	Percentage float64 `yaml:"percentage" default:"100" min:"0.001" max:"100"`
	// Delay before the request is forwarded, or before abort responds. 0s means no delay.
	FixedDelay Duration `yaml:"fixedDelay"`
	// The error to respond with. Absent means that the request is forwarded.
	Abort *Abort `yaml:"abort"`
	// How long the fault lasts, counting from when the gateway loads the configuration.
	TTL Duration `yaml:"ttl" default:"10m"`
}

// check implements [checked]. A fault does something, and ends by itself.
func (f *Fault) check(n node) {
	if f.FixedDelay == 0 && f.Abort == nil {
		n.failf("want at least one of fixedDelay, abort")
	}
	if f.TTL == 0 {
		n.at("ttl").failf("want a duration above 0, because a fault must end by itself")
	}
}

// Abort is the response for an injected error.
type Abort struct {
	// The HTTP status.
	HTTPStatus int `yaml:"httpStatus" is:"required" min:"400" max:"599"`
	// The gRPC status for gRPC calls. 0, the default, means the one that corresponds to
	// httpStatus.
	GRPCStatus int `yaml:"grpcStatus" min:"0" max:"16"`
}

// CORS lets browsers use the route from pages with other origins.
type CORS struct {
	// Allowed origins, such as https://books.example or https://*.example, or "*" for all
	// origins.
	AllowOrigins []Origin `yaml:"allowOrigins" is:"required"`
	// Allowed methods. "*" means any. The default is GET, HEAD and POST.
	AllowMethods []Method `yaml:"allowMethods"`
	// Request header fields that pages may set. "*" means any.
	AllowHeaders []HeaderName `yaml:"allowHeaders"`
	// Response header fields that scripts in pages may read.
	ExposeHeaders []HeaderName `yaml:"exposeHeaders"`
	// True lets pages send cookies and other credentials.
	AllowCredentials bool `yaml:"allowCredentials"`
	// How long browsers may cache the response to a preflight request.
	MaxAge Duration `yaml:"maxAge" default:"5s"`
}

// check implements [checked]. It protects services with credentials from the pages of all origins.
func (c *CORS) check(n node) {
	if len(c.AllowOrigins) == 0 {
		n.at("allowOrigins").failf("want at least one origin")
	}
	if c.AllowCredentials && slices.Contains(c.AllowOrigins, "*") {
		n.at("allowOrigins").failf(`want a list of origins beside allowCredentials, because "*" would allow every page`)
	}
}

// ExternalAuth asks a service whether a request is allowed. The service receives a GET request
// without a body. If it responds with a 2xx status, the request is allowed. Otherwise its
// response goes to the client. If the service cannot be called, the client gets the status 503.
type ExternalAuth struct {
	// The service to ask.
	BackendRef BackendName `yaml:"backendRef" is:"required"`
	// Path of the GET request.
	Path Path `yaml:"path" default:"/"`
	// How long to wait for the service.
	Timeout Duration `yaml:"timeout" default:"10s"`
	// Header fields to copy from the request to the GET request, which also carries
	// X-Forwarded-Method, -Proto, -Host, -Uri and -For.
	AllowedRequestHeaders []HeaderName `yaml:"allowedRequestHeaders"`
	// Header fields to copy from the service's response to the allowed request. Clients cannot
	// set them themselves, not even with underscores instead of dashes.
	AllowedResponseHeaders []HeaderName `yaml:"allowedResponseHeaders"`
}

// check reports a timeout of 0, with which every request to the service would fail.
func (e *ExternalAuth) check(n node) {
	if e.Timeout == 0 {
		n.at("timeout").failf("want a duration above 0")
	}
}

// RetryBudget limits retries and hedges over all routes together, to minRetryRate per second plus
// percent of the requests.
type RetryBudget struct {
	// Number of retries allowed per hundred requests.
	Percent float64 `yaml:"percent" default:"20" min:"0" max:"1000"`
	// Number of retries per second that are allowed in addition, regardless of how many requests
	// there are.
	MinRetryRate int `yaml:"minRetryRate" default:"10" min:"0" max:"1000000"`
	// Period over which percent counts requests, from 1s to 60s.
	Interval Duration `yaml:"interval" default:"10s"`
}

// check reports an interval that the retry layer does not support.
func (b *RetryBudget) check(n node) {
	if d := b.Interval.D().Seconds(); d < 1 || d > 60 {
		n.at("interval").failf("want a duration from 1s to 60s")
	}
}

// Describe says where the route sends requests: to services with their shares, to a redirect, to
// a fixed response, or to files.
func (r *Route) Describe() string {
	// The order does not matter, because a route has only one of these.
	switch {
	case r.DirectResponse != nil:
		return fmt.Sprintf("direct response %d", r.DirectResponse.Status)
	case r.StaticFiles != nil:
		return "files in " + r.StaticFiles.Root
	case r.RequestRedirect != nil:
		return "redirect " + r.RequestRedirect.StatusCode
	}
	var parts []string
	for _, b := range r.BackendRefs {
		parts = append(parts, fmt.Sprintf("%s %.4g%%", b.Name, 100*float64(b.Weight)/float64(r.totalWeight())))
	}
	return strings.Join(parts, ", ")
}
