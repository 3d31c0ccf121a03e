package profiles

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/gotower/gotower/layer"
)

// Profile specifies how the requests of one destination are treated. It must not be
// modified after it was passed to [Static.Set] or yielded by a [Source]. The zero Profile
// is the default one: it has no routes, and every request goes to its target.
type Profile struct {
	// Name is the fully qualified name of the destination, without a port. The apex is the
	// destination of requests if the profile has no Targets. If Name is a DNS name, the apex is
	// Name with the port of the target. Otherwise the apex is the target.
	Name string

	// Routes select the requests to which they apply. Precedence determines which of
	// several matching routes applies. If no route matches, the request has the default
	// route, which has no name, no labels and no classes. With RoutesOnly, such a request
	// fails with [layer.ErrNoRoute] instead, which is the HTTP status 404.
	Routes     []Route
	Precedence Precedence
	RoutesOnly bool

	// Targets share the requests in proportion to their weights. If no valid target has a weight
	// above 0, all requests go to the apex.
	Targets []Target

	// OpaqueProtocol turns protocol detection off for connections, see [Dispatch]. It
	// has no effect on requests.
	OpaqueProtocol bool

	// Endpoint is the only address of a destination without a Name, such as a pod. See
	// [Profile.Dispatch]. A Router uses Endpoint only with [WithForward].
	Endpoint *Endpoint

	// RetryBudget limits the retries and hedges of all routes together. If it is nil,
	// requests are neither retried nor hedged, except by Retry of a [RoutePolicy].
	RetryBudget *RetryBudget

	Policy *Policy // for client policies; may be nil
}

// Route selects requests and specifies how they are treated. Two routes are equal if
// reflect.DeepEqual returns true for them. If the next profile has an equal route, the route keeps
// its state.
//
// The fields from Timeout to Mirrors have an effect only with [WithRouteLayers], or if the
// function of [WithPerRoute] applies them. A zero or invalid value turns a field off.
type Route struct {
	Name    string            // for metrics and messages; may be empty
	Match   Match             // condition on requests; nil is invalid
	Classes []ResponseClass   // which responses are failures; the first class that matches a response applies
	Labels  map[string]string // for metrics and tap

	// Timeout limits the time of a request up to its response headers, including all
	// attempts and waits.
	Timeout time.Duration

	// AttemptTimeout limits the time of one attempt up to its response headers. An attempt
	// that takes longer is retried if the route is Retryable. Otherwise the request fails.
	AttemptTimeout time.Duration

	// Retryable allows retries of failed requests that are idempotent, within the RetryBudget. For
	// HTTP these are GET, HEAD, OPTIONS, TRACE, PUT, DELETE (RFC 9110) and requests with an
	// Idempotency-Key. A gRPC call is a POST. If RetryNonIdempotent is set too, all other requests
	// may also be retried, as with linkerd's isRetryable. MaxRetries is the largest number of
	// retries of one request, up to 99. 0 means 99.
	Retryable          bool
	RetryNonIdempotent bool
	MaxRetries         int

	// Hedge is the time without response headers after which a copy of the request is sent to
	// another endpoint. Each copy is withdrawn from the RetryBudget, like a retry. Only idempotent
	// requests are copied, unless both Retryable and RetryNonIdempotent are set. Retryable itself
	// is not required.
	Hedge time.Duration

	// Limit is the maximum number of concurrent requests, up to the end of their responses.
	// Rate is the maximum rate of new requests. Requests above a limit are rejected. 0
	// means no limit.
	Limit int
	Rate  Rate

	// RequestHeader changes the header of forwarded requests. Conditions read the original header.
	// ResponseHeader changes the header of responses, including those of Redirect and Faults.
	RequestHeader  layer.HeaderMutation
	ResponseHeader layer.HeaderMutation

	// Redirect answers every request, unless the request is already at the location of Redirect. A
	// request gets at most one of Faults, selected at random by the Fraction of each. A copy of
	// each request is sent to each of Mirrors. Retries of a request are not copied.
	Redirect *Redirect
	Faults   []Fault
	Mirrors  []Mirror

	Policy *RoutePolicy // for routes of client policies; may be nil
}

// Rate is a limit of requests per second.
type Rate struct {
	PerSecond float64 // 0 means no limit
	Burst     int     // largest number of requests at once; 0 means PerSecond rounded up, at least 1
}

// RetryBudget limits retries to a share of the requests, as [layer.Budget] does. In any period of
// length TTL there are at most Ratio × requests + MinPerSecond × TTL retries. Only the requests of
// routes with Retryable or a Hedge are counted. If the next profile has an equal RetryBudget, the
// counts continue. Otherwise they start again, and all routes are built again.
//
// For a Ratio up to 1, linkerd rounds 1/Ratio to a whole number. It rounds times to tenths of the
// TTL. Here, times are rounded to TTL/64, and the rounding never allows more retries than the
// formula above. A Ratio above 10 counts as 10. A MinPerSecond above 1 000 000 counts as 1 000 000.
type RetryBudget struct {
	Ratio        float64       // allowed retries per request, 0 to 1000
	MinPerSecond uint32        // retries that are always allowed, up to 2³¹−1
	TTL          time.Duration // time for which a request counts, 1 s to 60 s
}

// Validate returns an error for each part of p that a Router would leave out, joined into
// one error. It returns nil if p is valid. A Router uses the valid parts of an invalid
// profile.
func (p *Profile) Validate() error {
	var problems []error
	add := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	_, err := p.apex("")
	add(err)
	for i, r := range p.Routes {
		_, err := compileRoute(i, r, add)
		add(err)
		_, invalid := r.valid()
		for _, err := range invalid {
			add(routeError(i, r, err))
		}
	}
	for _, t := range p.Targets {
		add(t.Validate())
	}
	if p.Endpoint != nil {
		add(p.Endpoint.Validate())
	}
	if p.RetryBudget != nil {
		add(p.RetryBudget.Validate())
	}
	return errors.Join(problems...)
}

// Validate returns the reason why a Router would leave the whole route out of a profile, or nil.
// This depends only on Match. If another part is invalid, such as a timeout, the Router leaves out
// only this part. [Profile.Validate] reports such parts.
func (r Route) Validate() error {
	_, err := compileMatch(r.Match, func(error) {})
	return err
}

// maxRetries is the largest number of retries that layer.Retry allows for one request.
const maxRetries = 99

// valid returns a copy of r without invalid timeouts, limits, header changes, redirects,
// faults and mirrors, and an error for each of them. It does not check Match.
func (r Route) valid() (Route, []error) {
	var problems []error
	invalid := func(err error) bool {
		if err != nil {
			problems = append(problems, err)
		}
		return err != nil
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
	}{{"timeout", &r.Timeout}, {"attempt timeout", &r.AttemptTimeout}, {"hedge", &r.Hedge}} {
		if *d.value < 0 {
			invalid(fmt.Errorf("%s %v is below 0", d.name, *d.value))
			*d.value = 0
		}
	}
	if r.MaxRetries < 0 || r.MaxRetries > maxRetries {
		invalid(fmt.Errorf("max retries %d is not from 0 to %d", r.MaxRetries, maxRetries))
		r.MaxRetries = 0
	}
	if r.Limit < 0 {
		invalid(fmt.Errorf("limit %d is below 0", r.Limit))
		r.Limit = 0
	}
	if invalid(r.Rate.Validate()) {
		r.Rate = Rate{}
	}
	var errs []error
	r.RequestHeader, errs = r.RequestHeader.Valid()
	for _, err := range errs {
		invalid(fmt.Errorf("request header: %w", err))
	}
	r.ResponseHeader, errs = r.ResponseHeader.Valid()
	for _, err := range errs {
		invalid(fmt.Errorf("response header: %w", err))
	}
	if r.Redirect != nil && invalid(r.Redirect.Validate()) {
		r.Redirect = nil
	}
	var faults []Fault
	sum := 0.0
	for i, f := range r.Faults {
		err := f.problem()
		if err == nil && sum+f.Fraction > 1+1e-9 { // 1e-9 compensates for rounding
			err = fmt.Errorf("fraction %v is more than the faults before leave", f.Fraction)
		}
		if err != nil {
			invalid(fmt.Errorf("fault %d: %w", i, err))
			continue
		}
		sum += f.Fraction
		faults = append(faults, f)
	}
	r.Faults = faults
	var mirrors []Mirror
	for _, m := range r.Mirrors {
		if !invalid(m.Validate()) {
			mirrors = append(mirrors, m)
		}
	}
	r.Mirrors = mirrors
	if r.Policy != nil {
		p, errs := r.Policy.valid()
		r.Policy, problems = &p, append(problems, errs...)
	}
	return r, problems
}

// Validate returns an error with the name of the invalid field, or nil.
func (r Rate) Validate() error {
	switch {
	case !(r.PerSecond >= 0 && r.PerSecond <= math.MaxFloat64):
		return fmt.Errorf("rate: %v per second is not a number from 0", r.PerSecond)
	case r.Burst < 0:
		return fmt.Errorf("rate: burst %d is below 0", r.Burst)
	case r.Burst > 0 && r.PerSecond == 0:
		return errors.New("rate: a burst without a number per second")
	}
	return nil
}

func (r Rate) burst() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return int(min(max(math.Ceil(r.PerSecond), 1), math.MaxInt32))
}

// Validate returns an error with the name of the invalid field, or nil. The ranges are
// those of linkerd.
func (b RetryBudget) Validate() error {
	switch {
	case b.TTL < time.Second || b.TTL > time.Minute:
		return fmt.Errorf("retry budget: ttl %v is not from 1s to 60s", b.TTL)
	case b.MinPerSecond > math.MaxInt32:
		return fmt.Errorf("retry budget: min per second %d is above %d", b.MinPerSecond, math.MaxInt32)
	case !(b.Ratio >= 0 && b.Ratio <= 1000):
		return fmt.Errorf("retry budget: ratio %v is not from 0 to 1000", b.Ratio)
	}
	return nil
}

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

// apex returns the destination of requests if the profile has no split: Name with the port of
// target. If Name is empty or target has no port, apex returns target. If Name is invalid, apex
// returns target and an error.
func (p *Profile) apex(target string) (string, error) {
	if p.Name == "" {
		return target, nil
	}
	if !isName(p.Name) {
		return target, fmt.Errorf("name %q: not a DNS name", p.Name)
	}
	if _, port, err := net.SplitHostPort(target); err == nil {
		return net.JoinHostPort(p.Name, port), nil
	}
	return target, nil // target has no port
}

func routeError(i int, r Route, err error) error {
	if r.Name == "" {
		return fmt.Errorf("route %d: %w", i, err)
	}
	return fmt.Errorf("route %d %q: %w", i, r.Name, err)
}
