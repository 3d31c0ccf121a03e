package profiles

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Profile specifies how requests to one destination are treated. It must not be modified after it
// was passed to [Static.Set] or yielded by a [Source]. The zero Profile is the default one: it
// defines no routes, and every request goes to its target.
type Profile struct {
	// Name is the destination's fully qualified name, without a port. Requests go to the apex if
	// the profile lists no Targets. If Name is a DNS name, the apex is Name with the target's
	// port. Otherwise the apex is the target.
	Name string

	// Routes select the requests to which they apply. Precedence determines which of several
	// matching routes applies. If no route matches, the default route applies, which has no name,
	// no labels and no classes. With RoutesOnly, such a request fails with [layer.ErrNoRoute]
	// instead, which is the HTTP status 404.
	Routes     []Route
	Precedence Precedence
	RoutesOnly bool

	// Targets share the requests in proportion to their weights, as Distribution determines. If no
	// valid target's weight is above 0, all requests go to the apex.
	Targets      []Target
	Distribution Distribution

	// OpaqueProtocol turns protocol detection off for connections, see [Dispatch]. It does not
	// matter to requests.
	OpaqueProtocol bool

	// Endpoint is the only address of a destination without a Name, such as a pod. See
	// [Profile.Dispatch]. A Router uses Endpoint only with [WithBackends].
	Endpoint *resolve.Endpoint

	// RetryBudget limits the retries and hedges of all routes together. If it is nil, requests
	// are not hedged, and are retried only by a [Retry] with WithoutBudget.
	RetryBudget *RetryBudget

	Policy *Policy // for client policies; may be nil

	// Value is for the program that makes the profile. The services of Targets and of Endpoint get it as the Value of a
	// [Backend], and [Router.Profile] returns it with the profile. It must be comparable, and is usually a pointer.
	Value any
}

// Route selects requests and specifies how they are treated. Two routes are equal if their Values are
// equal and reflect.DeepEqual returns true for the rest. If the next profile contains an equal route, it
// keeps its state.
//
// The fields from Timeout to Mirrors take effect only with [WithRouteLayers], or if your
// [WithPerRoute] function applies them. A zero or invalid value turns a field off.
type Route struct {
	Name    string            // for metrics and messages; may be empty
	Match   Match             // condition on requests; nil is invalid
	Classes []ResponseClass   // which responses are failures; the first class that matches a response applies
	Labels  map[string]string // for metrics and tap

	// The time limits of a request include all its attempts and the waits between them. 0 means no limit.
	//
	//	field            limits      from                        to
	//	Timeout          a request   its arrival                 the response headers
	//	RequestTimeout   a request   its arrival                 the end of the response
	//	AttemptTimeout   an attempt  the end of the request body the response headers
	//	ResponseTimeout  an attempt  the end of the request body the end of the response
	//	IdleTimeout      an attempt  a part of the response      the next part
	//
	// With TimeoutAfterBody, Timeout counts from the end of the request body too, as in
	// [layer.ResponseHeaderTimeout]. An attempt that exceeds AttemptTimeout may be followed by another one,
	// see Retry. The other limits fail the request.
	Timeout          time.Duration
	TimeoutAfterBody bool
	RequestTimeout   time.Duration
	AttemptTimeout   time.Duration
	ResponseTimeout  time.Duration
	IdleTimeout      time.Duration

	// Retry sends failed requests again. nil means that each request is sent once.
	Retry *Retry

	// Overrides allows requests to change their retries and timeouts by header fields:
	// l5d-retry-http, l5d-retry-grpc, l5d-retry-limit, l5d-retry-timeout (AttemptTimeout), l5d-timeout or
	// l5d-request-timeout (RequestTimeout) and l5d-response-timeout. The values look as linkerd documents.
	// The fields are removed before the request is forwarded.
	Overrides bool

	// Hedge is how long a request waits for response headers until a copy is sent to another
	// endpoint. Each copy is withdrawn from the RetryBudget, like a retry. In addition, at most 5
	// % of the route's requests in the last second, plus one a second, are copied, because more
	// copies could overload a slow backend. A retry is not copied. Only idempotent requests are
	// copied, unless Retry has NonIdempotent.
	Hedge time.Duration

	// Limit is how many requests may run concurrently, up to the end of their responses. Rate is
	// the maximum rate of new requests. Requests above a limit are rejected. 0 means no limit.
	Limit int
	Rate  Rate

	// RequestHeader changes the headers of forwarded requests; conditions read the original ones.
	// ResponseHeader changes response headers, including those for Redirect, Respond and Faults.
	RequestHeader  layer.HeaderMutation
	ResponseHeader layer.HeaderMutation

	// Rewrite changes the host and path of forwarded requests.
	Rewrite *Rewrite

	// Redirect answers every request, unless the request is already at the new location. Respond
	// answers every other request itself, so that no target is needed. A request gets at most one of
	// Faults, selected at random by their Fractions. A copy of each request, but not of its retries,
	// is sent to each of Mirrors.
	Redirect *Redirect
	Respond  *layer.DirectResponse
	Faults   []Fault
	Mirrors  []Mirror

	// Backends share the route's requests in proportion to their weights, as Distribution determines. They are
	// different services, with their own filters and balancers. For fail-over among one service's endpoints, you should
	// use resolve.Endpoint.Priority instead. If all weights are 0, requests are rejected. An invalid backend fails its
	// share of the requests. nil means the profile's targets. If a backend has Labels, a request's [layer.Route] is added
	// to the context when a backend is chosen, so the route's layers do not see it.
	Backends     []Backend
	Distribution Distribution

	// Value is for the program that makes the profile. [Config.Metrics] and the function of [WithPerRoute]
	// get it with the route, and the services below with the request, as the Value of its [layer.Route], so that
	// they need no other way to find what belongs to it. It must be comparable, and is usually a pointer.
	Value any
}

// Rate is a limit of requests per second.
type Rate struct {
	PerSecond float64 // 0 means no limit
	Burst     int     // largest number of requests at once; 0 means PerSecond rounded up, at least 1
}

// RetryBudget limits retries to a share of the requests, like [layer.Budget]. In any period of
// length TTL there are at most Ratio × requests + MinPerSecond × TTL retries. Only requests on
// routes with a Hedge, or a Retry without WithoutBudget, are counted. If the next profile contains an equal RetryBudget,
// the counts continue. Otherwise they start again, and all routes are built again.
//
// For a Ratio up to 1, linkerd rounds 1/Ratio to a whole number. It rounds times to tenths of the
// TTL. Here, times are rounded to TTL/64, and never so that there are more retries than the formula
// above allows. A Ratio above 10 counts as 10. A MinPerSecond above 1 000 000 counts as 1 000 000.
type RetryBudget struct {
	Ratio        float64       // allowed retries per request, 0 to 1000
	MinPerSecond uint32        // retries that are always allowed, up to 2³¹−1
	TTL          time.Duration // time for which a request counts, 1 s to 60 s
}

// Validate returns the mistakes in p, as [FieldErrors], or nil if p is valid. A Router leaves out each
// field with a mistake, and uses the rest of the profile.
func (p *Profile) Validate() error {
	var problems FieldErrors
	_, err := p.apex("")
	problems.add("Name", err)
	for i := range p.Routes {
		r := &p.Routes[i]
		for _, mistake := range r.mistakes() {
			problems = append(problems, routeError(i, r, mistake))
		}
	}
	for i, t := range p.Targets {
		problems.add(item("Targets", i), t.Validate())
	}
	if p.Endpoint != nil {
		problems.add("Endpoint", p.Endpoint.Validate())
	}
	if p.RetryBudget != nil {
		problems.add("RetryBudget", p.RetryBudget.Validate())
	}
	return problems.orNil()
}

// Validate returns the mistakes in r, as [FieldErrors], or nil if r is valid. A Router leaves out each
// field with a mistake. If Match is invalid (see [ValidateMatch]), it leaves out the whole route.
func (r Route) Validate() error { return r.mistakes().orNil() }

func (r Route) mistakes() FieldErrors {
	_, invalid := r.valid()
	problems := make(FieldErrors, 0, len(invalid))
	if _, ok := compileRoute(&r, &problems); ok {
		compileClasses(r.Classes, &problems)
	}
	return append(problems, invalid...)
}

// valid returns a copy of r without invalid timeouts, limits, header changes, redirects, faults
// and mirrors, and the mistakes in them, but does not check Match.
func (r Route) valid() (Route, FieldErrors) {
	var problems FieldErrors
	problems.negative("Timeout", &r.Timeout)
	problems.negative("RequestTimeout", &r.RequestTimeout)
	problems.negative("AttemptTimeout", &r.AttemptTimeout)
	problems.negative("ResponseTimeout", &r.ResponseTimeout)
	problems.negative("IdleTimeout", &r.IdleTimeout)
	problems.negative("Hedge", &r.Hedge)
	if r.Retry != nil && problems.add("Retry", r.Retry.validate()) {
		r.Retry = nil
	}
	if r.Limit < 0 {
		problems.add("Limit", fmt.Errorf("%d is below 0", r.Limit))
		r.Limit = 0
	}
	if problems.add("Rate", r.Rate.Validate()) {
		r.Rate = Rate{}
	}
	r.RequestHeader = validHeader("RequestHeader", r.RequestHeader, &problems)
	r.ResponseHeader = validHeader("ResponseHeader", r.ResponseHeader, &problems)
	if r.Redirect != nil && problems.add("Redirect", r.Redirect.Validate()) {
		r.Redirect = nil
	}
	if r.Rewrite != nil && problems.add("Rewrite", r.Rewrite.Validate()) {
		r.Rewrite = nil
	}
	if r.Respond != nil && problems.add("Respond", validResponse(r.Respond)) {
		r.Respond = nil
	}
	r.Faults = validFaults(r.Faults, &problems)
	var mirrors []Mirror
	for i, m := range r.Mirrors {
		if !problems.add(item("Mirrors", i), m.Validate()) {
			mirrors = append(mirrors, m)
		}
	}
	r.Mirrors = mirrors
	for i := range r.Backends {
		if b := &r.Backends[i]; b.hasFilters() {
			_, mistakes := b.filters().valid()
			problems.add(item("Backends", i), mistakes.orNil())
		}
	}
	return r, problems
}

// validHeader returns the valid changes of c, which is the given field. It adds the others to problems.
func validHeader(field string, c layer.HeaderMutation, problems *FieldErrors) layer.HeaderMutation {
	valid, mistakes := c.Valid()
	for _, err := range mistakes {
		problems.add(field, err)
	}
	return valid
}

// Validate returns an error with the invalid field's name, or nil.
func (r Rate) Validate() error {
	switch {
	// Written so that NaN is out of range too, as is infinity.
	case !(r.PerSecond >= 0 && r.PerSecond <= math.MaxFloat64):
		return fmt.Errorf("%v per second is not a number from 0", r.PerSecond)
	case r.Burst < 0:
		return fmt.Errorf("burst %d is below 0", r.Burst)
	case r.Burst > 0 && r.PerSecond == 0:
		return errors.New("a burst without a number per second")
	}
	return nil
}

// burst returns Burst, or by default the requests of one second.
func (r Rate) burst() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return int(min(max(math.Ceil(r.PerSecond), 1), math.MaxInt32))
}

// Validate returns an error with the invalid field's name, or nil. The ranges are those of
// linkerd.
func (b RetryBudget) Validate() error {
	switch {
	case b.TTL < time.Second || b.TTL > time.Minute:
		return fmt.Errorf("ttl %v is not from 1s to 60s", b.TTL)
	case b.MinPerSecond > math.MaxInt32:
		return fmt.Errorf("min per second %d is above %d", b.MinPerSecond, math.MaxInt32)
	case !(b.Ratio >= 0 && b.Ratio <= 1000):
		return fmt.Errorf("ratio %v is not from 0 to 1000", b.Ratio)
	}
	return nil
}

// budget returns a new budget as b describes it.
func (b RetryBudget) budget() *layer.Budget {
	ratio, perSecond := b.Ratio, int(b.MinPerSecond)
	if ratio == 0 {
		ratio = -1 // for NewBudget, 0 means the default
	}
	if perSecond == 0 {
		perSecond = -1
	}
	return layer.NewBudget(b.TTL, ratio, perSecond)
}

// apex returns where requests go if the profile contains no split: Name with target's port. If
// Name is empty or target has no port, apex returns target. If Name is invalid, apex returns
// target and an error.
func (p *Profile) apex(target string) (string, error) {
	if p.Name == "" {
		return target, nil
	}
	if !authority.IsDNSName(p.Name) {
		return target, fmt.Errorf("%q is not a DNS name", p.Name)
	}
	if _, port, err := net.SplitHostPort(target); err == nil {
		return net.JoinHostPort(p.Name, port), nil
	}
	return target, nil // target has no port
}
