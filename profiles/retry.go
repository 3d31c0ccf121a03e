package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
)

// Retry determines which failed attempts are repeated: those with a response of Statuses or GRPC, those
// that exceed [Route].AttemptTimeout, and those with an error of class [layer.Retryable]. An attempt that a
// layer or a backend rejects, with an error that matches [layer.ErrNotReady], is not repeated. A request
// with Early-Data is sent once (RFC 8470).
type Retry struct {
	// Max is how often one request may be retried, up to 99. 0 means 99.
	Max int

	// NonIdempotent allows retries of all requests, as linkerd does. Otherwise only idempotent ones are
	// retried. For HTTP these are GET, HEAD, OPTIONS, TRACE, PUT, DELETE (RFC 9110) and requests with an
	// Idempotency-Key. A gRPC call is a POST.
	NonIdempotent bool

	// WithoutBudget allows retries that are not withdrawn from the profile's RetryBudget, as in linkerd's
	// policies. Otherwise there are no retries if the profile has no budget.
	WithoutBudget bool

	// Statuses and GRPC are the responses that are retried. If both are nil, these are the failures by the
	// route's Classes, see also [Config.RetryByClass]. An empty list contains no response.
	Statuses []Status
	GRPC     []GRPCStatus

	// LastUnlimited exempts the last of several attempts from AttemptTimeout, because no retry can follow.
	LastUnlimited bool

	// Backoff is the pause between two attempts. The zero Backoff means none.
	Backoff layer.Backoff

	// MaxBodyBytes is the size of the largest request body that is kept for retries. 0 means 64 KiB, and a
	// negative value means none. Requests with a larger body are sent once.
	MaxBodyBytes int64
}

const (
	maxRetries   = 99          // the largest number of retries that layer.Retry allows for one request
	maxErrorWait = time.Second // longest wait before a retry that an error may request
)

// MayRetry reports whether the route's requests may be sent more than once.
func (r Route) MayRetry() bool { return r.Retry != nil || r.Overrides }

// validate returns an error that describes the first mistake in r, or nil.
func (r *Retry) validate() error {
	if r.Max < 0 || r.Max > maxRetries {
		return fmt.Errorf("max %d is not from 0 to %d", r.Max, maxRetries)
	}
	if err := backoff.Check(r.Backoff); err != nil {
		return err
	}
	for _, s := range r.Statuses {
		if _, err := s.compileResponse(); err != nil {
			return err
		}
	}
	for _, g := range r.GRPC {
		if _, err := g.compileResponse(); err != nil {
			return err
		}
	}
	return nil
}

// addAttempts adds two kinds of layers to st: layers that send a request more than once,
// and below them the layers that apply to each attempt. grpc reports whether the stack is
// for gRPC requests.
func (a *routeStack[Req, Rsp]) addAttempts(st layer.Stack[Req, Rsp], grpc bool) layer.Stack[Req, Rsp] {
	route, budget := a.route, a.retryBudget
	if gauge := a.requests.Budget; gauge != nil && budget == nil {
		gauge.Set(0)
	}
	if a.overridden {
		st = st.With("retry", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
			return &overriddenRetry[Req, Rsp]{Service: next, stack: a, grpc: grpc}
		})
	} else {
		st = a.addRetry(st, route.Retry, route.AttemptTimeout, grpc)
	}
	if route.Hedge > 0 && budget != nil {
		st = st.Hedge(layer.HedgePolicy[Req]{
			Budget: budget, MinDelay: route.Hedge, MaxDelay: route.Hedge, HedgeIf: a.repeatable(route.Retry),
		})
	}
	if measures(a.attempts) {
		st = st.Metrics(a.attempts)
	}
	return a.changeRequests(a.addAttemptTimeouts(st))
}

// addRetry adds to st the layer that retries requests as r determines, and limits each attempt by timeout. r may
// be nil. grpc reports whether the stack is for gRPC requests.
func (a *routeStack[Req, Rsp]) addRetry(
	st layer.Stack[Req, Rsp], r *Retry, timeout time.Duration, grpc bool,
) layer.Stack[Req, Rsp] {
	budget := a.retryBudget
	if r != nil && r.WithoutBudget {
		budget = a.unlimited
	}
	if r == nil || budget == nil {
		if timeout > 0 {
			st = st.ResponseHeaderTimeout(timeout)
		}
		return st
	}
	pause := r.Backoff
	if pause == (layer.Backoff{}) {
		pause = layer.Backoff{Min: 1, Max: 1} // the shortest valid one, because zero means the default
	}
	return st.Retry(layer.RetryPolicy[Req, Rsp]{
		Budget: budget, MaxAttempts: cmp.Or(r.Max, maxRetries) + 1, AttemptTimeout: timeout, LastUnlimited: r.LastUnlimited,
		Backoff: pause, MaxRetryAfter: maxErrorWait, MaxBodyBytes: r.MaxBodyBytes, CanRetry: a.repeatable(r),
		RetryIf: func(o layer.Outcome[Rsp]) bool {
			return o.Err == nil && a.retryableResponse(r, grpc, o) || a.retryableError(o)
		},
	})
}

// repeatable returns a function that reports whether a request may be sent more than once. r may be nil.
func (a *routeStack[Req, Rsp]) repeatable(r *Retry) func(Req) bool {
	nonIdempotent := r != nil && r.NonIdempotent
	return func(req Req) bool {
		if a.access.RequestHeader(req).Get("Early-Data") != "" {
			return false // the client repeats it (RFC 8470, section 5.2)
		}
		return nonIdempotent || a.protocol.Idempotent(req)
	}
}

// retryableResponse reports whether an attempt with the response of o may be retried. If r has no list of
// responses, it may if it is a failure. Without classes of the route, 501 is none, because it would be the
// same again, and 425 is one, because the connection is past early data then (RFC 8470). 425 does not count
// as a failure of the service. See also [Config.RetryByClass].
func (a *routeStack[Req, Rsp]) retryableResponse(r *Retry, grpc bool, o layer.Outcome[Rsp]) bool {
	status := a.access.Status(o.Response)
	if r.Statuses != nil || r.GRPC != nil {
		return r.lists(response{status: status, header: a.access.ResponseHeader(o.Response)}) ||
			o.Ended && r.lists(response{status: status, trailer: a.access.ResponseTrailer(o.Response)})
	}
	if len(a.classes) == 0 && !grpc {
		switch status {
		case statusTooEarly:
			return true
		case statusNotImplemented:
			return false
		}
	}
	if len(a.classes) == 0 && a.config.RetryByClass {
		return a.protocol.Classify(o) == layer.Retryable
	}
	return a.class(grpc, o).IsFailure()
}

// lists reports whether rsp is in Statuses or GRPC. A condition on trailers that have not arrived does not
// hold yet.
func (r *Retry) lists(rsp response) bool {
	return slices.ContainsFunc(r.Statuses, func(s Status) bool { return s.holds(rsp) == yes }) ||
		slices.ContainsFunc(r.GRPC, func(g GRPCStatus) bool { return g.holds(rsp) == yes })
}

const (
	statusTooEarly       = 425
	statusNotImplemented = 501
)

// retryableError reports whether an attempt with the outcome o may be retried because of its error.
// It returns true if the attempt exceeded its time limit, or if its error is of class Retryable. It
// returns false for a rejection (ErrNotReady).
func (a *routeStack[Req, Rsp]) retryableError(o layer.Outcome[Rsp]) bool {
	return o.Err != nil && !errors.Is(o.Err, layer.ErrNotReady) &&
		(errors.Is(o.Err, layer.ErrAttemptTimeout) || a.protocol.Classify(o) == layer.Retryable)
}

// routeProtocol is the Protocol for a route's layers. Its RetryAfter ignores a Retry-After in a
// response, as linkerd does.
type routeProtocol[Req, Rsp any] struct{ layer.Protocol[Req, Rsp] }

func (routeProtocol[Req, Rsp]) RetryAfter(Rsp, error) (time.Duration, bool) { return 0, false }
