package profiles

import (
	"errors"
	"time"

	"github.com/gotower/gotower/layer"
)

const (
	keptBody     = 64 << 10    // bytes of a request body that are kept for retries, as in linkerd's proxy
	maxErrorWait = time.Second // longest wait before a retry that an error may request
)

// noBackoff returns the shortest valid Backoff. The zero Backoff would mean the default.
func noBackoff() layer.Backoff { return layer.Backoff{Min: 1, Max: 1} }

// addAttempts adds two kinds of layers to st: layers that send a request more than once,
// and below them the layers that apply to each attempt. grpc reports whether the stack is
// for gRPC requests.
func (a *routeStack[Req, Rsp]) addAttempts(st layer.Stack[Req, Rsp], grpc bool) layer.Stack[Req, Rsp] {
	route, budget := a.route, a.retryBudget
	if route.Retry != nil || a.overridden {
		if route.Retryable, route.AttemptTimeout, route.Hedge = false, 0, 0; a.overridden {
			st = st.With("retry", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
				return &overriddenRetry[Req, Rsp]{Service: next, stack: a, options: a.options(a.protocol.Classify)}
			})
		} else {
			st = st.Retry(a.retryPolicy(route.Retry))
		}
	}
	if gauge := a.requests.Budget; gauge != nil && budget == nil {
		gauge.Set(0)
	}
	switch {
	case route.Retryable && budget != nil:
		retries := route.MaxRetries
		if retries == 0 {
			retries = maxRetries
		}
		st = st.Retry(layer.RetryPolicy[Req, Rsp]{
			Budget: budget, MaxAttempts: retries + 1, AttemptTimeout: route.AttemptTimeout,
			Backoff: noBackoff(), MaxRetryAfter: maxErrorWait, MaxBodyBytes: keptBody, CanRetry: a.canRetry,
			RetryIf: func(o layer.Outcome[Rsp]) bool {
				return o.Err == nil && a.retryableResponse(grpc, o) || a.retryableError(o)
			},
		})
	case route.AttemptTimeout > 0:
		st = st.ResponseHeaderTimeout(route.AttemptTimeout)
	}
	if route.Hedge > 0 && budget != nil {
		st = st.Hedge(layer.HedgePolicy[Req]{
			Budget: budget, MinDelay: route.Hedge, MaxDelay: route.Hedge, MaxBodyBytes: keptBody, HedgeIf: a.canRetry,
		})
	}
	if measures(a.attempts) {
		st = st.Metrics(a.attempts)
	}
	return a.changeRequests(a.addAttemptTimeouts(st))
}

// canRetry reports whether req may be sent more than once.
func (a *routeStack[Req, Rsp]) canRetry(req Req) bool {
	if a.access.RequestHeader(req).Get("Early-Data") != "" {
		return false // the client repeats it (RFC 8470, section 5.2)
	}
	return a.route.Retryable && a.route.RetryNonIdempotent || a.protocol.Idempotent(req)
}

// retryableResponse reports whether an attempt with the response of o may be retried: if it is a failure.
// Without classes of the route, 501 is not, because it would be the same again, and 425 is, because the
// connection is past early data then (RFC 8470). 425 does not count as a failure of the service. See also
// [Config.RetryByClass].
func (a *routeStack[Req, Rsp]) retryableResponse(grpc bool, o layer.Outcome[Rsp]) bool {
	if len(a.classes) == 0 && !grpc {
		switch a.access.Status(o.Response) {
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
