package profiles

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/gotower/gotower/layer"
)

// Profile says how to treat the requests of one destination. It is data; who
// hands one over must not change it, or anything in it, afterwards. The zero
// Profile is the default one: no routes, and every request goes to the target
// that was asked for.
type Profile struct {
	// Name is the destination's fully qualified name, without a port. If it is
	// a DNS name, the apex is Name at the port of the target that was asked
	// for; otherwise the apex is that target.
	Name string

	// Routes are looked at in order, and the first one that matches is the
	// request's route. A request that matches none has the default route: no
	// name, no labels, no classes of its own.
	Routes []Route

	// Targets share the requests by weight. With none that is valid and has
	// weight, all requests go to the apex.
	Targets []Target

	// OpaqueProtocol asks whoever serves connections not to look for HTTP in
	// them: see [Dispatch]. For a Router, which sees requests, it changes nothing.
	OpaqueProtocol bool

	// Endpoint is the one place where the destination is served, if it is
	// served at one. A profile with a Name is not: see [Profile.Dispatch]. A
	// Router reads it with [WithForward].
	Endpoint *Endpoint

	// RetryBudget bounds the retries and the hedges of all routes together; nil
	// means none of either.
	RetryBudget *RetryBudget
}

// Route is a kind of request, and how to treat it. Two routes are the same
// when they are deeply equal; the same route keeps its state from one profile
// to the next.
//
// What follows Labels is acted on by [WithRouteLayers], or by whatever else is given
// to [WithPerRoute]. There 0 is none, and so is a value that is out of its range.
type Route struct {
	Name    string            // for people and metrics; may be empty
	Match   Match             // which requests; nil is invalid
	Classes []ResponseClass   // which responses are failures; the first that matches decides
	Labels  map[string]string // for metrics and tap

	// Timeout is how long a request may take until the head of its response,
	// all tries and all waiting included.
	Timeout time.Duration

	// AttemptTimeout is the same for a single try. What is over it is tried again
	// if the route is Retryable, else it is a failure.
	AttemptTimeout time.Duration

	// Retryable allows retries of failed requests that are idempotent, within the
	// profile's RetryBudget. For HTTP these are GET, HEAD, OPTIONS, TRACE, PUT,
	// DELETE (RFC 9110) and requests with an Idempotency-Key. A gRPC call is a
	// POST. RetryNonIdempotent allows retries of all other requests too, as
	// linkerd's isRetryable does. It has no effect unless Retryable is set.
	// MaxRetries limits the retries of one request, 0 to 99; 0 leaves the limit to
	// the budget and Timeout.
	Retryable          bool
	RetryNonIdempotent bool
	MaxRetries         int

	// Hedge is how long to wait for the head of a response before the request
	// is sent a second time, to another endpoint. Copies are taken from the
	// RetryBudget. Only requests that Retryable and RetryNonIdempotent would
	// allow to be retried are copied, and idempotent ones also without Retryable.
	Hedge time.Duration

	// Limit is how many requests may be on their way at a time, to the end of
	// their responses, and Rate how many may begin. What is beyond is refused.
	Limit int
	Rate  Rate

	// RequestHeader changes the header of requests as they are forwarded, and
	// ResponseHeader that of responses, answers of Redirect and Faults included.
	// Matches see a request as it came.
	RequestHeader  layer.HeaderMutation
	ResponseHeader layer.HeaderMutation

	// Redirect, if there is one, is the answer to every request that is not
	// where it points to already: no other is forwarded. Of faults the first
	// whose share a request falls into is its own. Mirrors get copies of the
	// requests, once for each and not for each try.
	Redirect *Redirect
	Faults   []Fault
	Mirrors  []Mirror
}

// Rate is a number of requests a second.
type Rate struct {
	PerSecond float64 // 0 is no limit
	Burst     int     // how many at once; 0 is those of one second, and one at least
}

// Target is one part of a split.
type Target struct {
	Authority string // a DNS name and a port: "web-v2.default.svc.cluster.local:80"
	Weight    uint32 // share of the requests; 0 is none
}

// RetryBudget bounds retries to a share of the requests, as [layer.Budget] does:
// in any TTL at most Ratio × those requests + MinPerSecond × TTL. Requests count
// if their route is Retryable or hedged. A profile that has the same RetryBudget
// as the one before it has the same account, too.
//
// linkerd does its sums in whole numbers and tenths of the TTL; these are exact,
// and never allow more. A Ratio above 10 acts as 10, and a MinPerSecond above a
// million as a million.
type RetryBudget struct {
	Ratio        float64       // retries for each request, 0 to 1000
	MinPerSecond uint32        // retries that are always allowed, at most 2³¹−1
	TTL          time.Duration // how long a request counts, 1 s to 60 s
}

// Validate returns an error for all that a Router would leave out of p, joined
// from one error for each piece, or nil. A profile with such pieces works, but
// not as its author meant.
func (p *Profile) Validate() error {
	var problems []error
	drop := func(err error) { problems = append(problems, err) }
	if _, err := p.apex(""); err != nil {
		drop(err)
	}
	left := room(maxGrowth)
	for i, r := range p.Routes {
		if err := left.take(i, r, r.growth()); err != nil {
			drop(err)
		} else if _, err := compileRoute(i, r, drop); err != nil {
			drop(err)
		}
		for _, err := range r.outOfRange() {
			drop(routeError(i, r, err))
		}
	}
	for _, t := range p.Targets {
		if err := t.Validate(); err != nil {
			drop(err)
		}
	}
	if p.Endpoint != nil {
		if err := p.Endpoint.Validate(); err != nil {
			drop(err)
		}
	}
	if p.RetryBudget != nil {
		if err := p.RetryBudget.Validate(); err != nil {
			drop(err)
		}
	}
	return errors.Join(problems...)
}

// Validate says why a Router would leave the route out, or returns nil.
// Classes, members of a condition, and all that WithRouteLayers acts on do not make the
// route invalid; [Profile.Validate] finds those too.
func (r Route) Validate() error {
	return validate(r.Match)
}

// Validate says which field is out of its range, or returns nil. The ranges
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

// apex is where requests go that no split sends elsewhere. The error says why
// it is not the name.
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
	return target, nil // without a port there is nothing to go by
}

func routeError(i int, r Route, err error) error {
	if r.Name == "" {
		return fmt.Errorf("route %d: %w", i, err)
	}
	return fmt.Errorf("route %d %q: %w", i, r.Name, err)
}
