package profiles

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/gotower/gotower/layer"
)

// Profile specifies how to treat the requests of one destination. It is data, and
// must not change after it was passed on. The zero Profile is the default one: it
// has no routes, and every request goes to its target.
type Profile struct {
	// Name is the fully qualified name of the destination, without a port. If it
	// is a DNS name, the apex is Name with the port of the target. Otherwise the
	// apex is the target.
	Name string

	// Routes are tried in order. The first one that matches is the request's
	// route. A request that matches none has the default route, without name,
	// labels and classes.
	Routes []Route

	// Targets share the requests by weight. Without a valid target with a weight
	// all requests go to the apex.
	Targets []Target

	// OpaqueProtocol turns protocol detection off for connections: see [Dispatch].
	// It has no effect on requests.
	OpaqueProtocol bool

	// Endpoint is the address of a destination that has only one. A profile with a
	// Name has none: see [Profile.Dispatch]. A Router uses it with [WithForward].
	Endpoint *Endpoint

	// RetryBudget limits the retries and hedges of all routes together. With nil
	// there are none.
	RetryBudget *RetryBudget
}

// Route is a kind of request, and how to treat it. Two routes are the same if they
// are deeply equal. The same route keeps its state from one profile to the next.
//
// The fields after Labels are for [WithRouteLayers] and [WithPerRoute]. A value of
// 0, or outside the range, turns a field off.
type Route struct {
	Name    string            // for people and metrics; may be empty
	Match   Match             // condition on requests; nil is invalid
	Classes []ResponseClass   // which responses are failures; the first that matches decides
	Labels  map[string]string // for metrics and tap

	// Timeout limits a request up to its response headers, including all attempts
	// and waits.
	Timeout time.Duration

	// AttemptTimeout limits one attempt up to its response headers. A late attempt
	// is retried if the route is Retryable; otherwise the request fails.
	AttemptTimeout time.Duration

	// Retryable allows retries of failed requests that are idempotent, within the
	// profile's RetryBudget. For HTTP these are GET, HEAD, OPTIONS, TRACE, PUT,
	// DELETE (RFC 9110) and requests with an Idempotency-Key. A gRPC call is a
	// POST. RetryNonIdempotent allows retries of all other requests too, as
	// linkerd's isRetryable does. It has no effect unless Retryable is set.
	// MaxRetries limits the retries of one request, 0 to 99. With 0 only the
	// budget and Timeout limit them.
	Retryable          bool
	RetryNonIdempotent bool
	MaxRetries         int

	// Hedge is the wait for response headers before the request is sent a second
	// time, to another endpoint. Copies are withdrawn from the RetryBudget. Only
	// requests that may be retried are copied, also without Retryable.
	Hedge time.Duration

	// Limit is the maximum number of concurrent requests, up to the end of their
	// responses. Rate is the maximum rate of new ones. Requests beyond are rejected.
	Limit int
	Rate  Rate

	// RequestHeader changes the header of forwarded requests. Conditions read the
	// header as it arrived. ResponseHeader changes that of responses, including
	// those of Redirect and Faults.
	RequestHeader  layer.HeaderMutation
	ResponseHeader layer.HeaderMutation

	// Redirect, if set, answers every request that is not already at its target.
	// The first Fault whose fraction selects a request applies. Each request, not
	// each attempt, is copied once to every Mirror.
	Redirect *Redirect
	Faults   []Fault
	Mirrors  []Mirror
}

// Rate is a number of requests per second.
type Rate struct {
	PerSecond float64 // 0 is no limit
	Burst     int     // requests at once; 0 is those of one second, at least one
}

// RetryBudget limits retries to a share of the requests, as [layer.Budget] does: in
// any TTL at most Ratio × requests + MinPerSecond × TTL. Only requests of routes
// that are Retryable or hedged count. A profile with the same RetryBudget as the
// previous one keeps its balance. Another RetryBudget makes all routes again.
//
// linkerd counts in whole numbers and tenths of the TTL. These limits are exact and
// never higher. A Ratio above 10 has the effect of 10, and a MinPerSecond above a
// million that of a million.
type RetryBudget struct {
	Ratio        float64       // retries for each request, 0 to 1000
	MinPerSecond uint32        // retries that are always allowed, at most 2³¹−1
	TTL          time.Duration // how long a request counts, 1 s to 60 s
}

// Validate returns the errors of all parts that a Router would leave out of p,
// joined, or nil. The rest of such a profile takes effect.
func (p *Profile) Validate() error {
	var problems []error
	add := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	_, err := p.apex("")
	add(err)
	c := &compiler{drop: add}
	for i, r := range p.Routes {
		_, err := c.route(i, r)
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

// Validate returns the reason for which a Router would leave the route out, or nil.
// Use [Profile.Validate] for invalid parts of a route.
func (r Route) Validate() error {
	_, err := compileMatch(r.Match, &compiler{drop: func(error) {}})
	return err
}

// maxRetries is the maximum that layer.Retry has.
const maxRetries = 99

// valid returns the route without the invalid parts of the fields after Labels,
// and an error for each.
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
		if err == nil && sum+f.Fraction > 1+1e-9 { // tenths add up to a little more than 1
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
	return r, problems
}

// Validate returns an error that names the field out of range, or nil.
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

// Validate returns an error that names the field out of range, or nil. The ranges
// are linkerd's.
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

// budget returns a budget with the values of b.
func (b RetryBudget) budget() *layer.Budget {
	ratio, perSecond := b.Ratio, int(b.MinPerSecond)
	if ratio == 0 {
		ratio = -1 // NewBudget has defaults for 0
	}
	if perSecond == 0 {
		perSecond = -1
	}
	return layer.NewBudget(b.TTL, ratio, perSecond)
}

// apex returns the destination of requests without a split, and an error for an
// invalid name.
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
	return target, nil // a target without a port
}

func routeError(i int, r Route, err error) error {
	if r.Name == "" {
		return fmt.Errorf("route %d: %w", i, err)
	}
	return fmt.Errorf("route %d %q: %w", i, r.Name, err)
}
