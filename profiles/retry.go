package profiles

import (
	"errors"
	"strconv"
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
	if p := route.Policy; p != nil && (p.Retry != nil || a.overridden) && a.layers.replayer != nil {
		if route.Retryable, route.AttemptTimeout, route.Hedge = false, 0, 0; a.overridden {
			st = st.With("retry", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
				return &overriddenRetry[Req, Rsp]{Service: next, stack: a, options: a.options(a.layers.classify)}
			})
		} else {
			st = st.Retry(a.retryPolicy(p.Retry))
		}
	}
	if gauge := a.requests.Budget; gauge != nil && budget == nil {
		gauge.Set(0)
	}
	if a.layers.replayer == nil {
		budget = nil
	}
	canRetry := func(req Req) bool {
		return route.Retryable && route.RetryNonIdempotent || a.layers.replayer.Idempotent(req)
	}
	switch {
	case route.Retryable && budget != nil:
		retries := route.MaxRetries
		if retries == 0 {
			retries = maxRetries
		}
		st = st.Retry(layer.RetryPolicy[Req, Rsp]{
			Budget: budget, MaxAttempts: retries + 1, AttemptTimeout: route.AttemptTimeout,
			Backoff: noBackoff(), MaxRetryAfter: maxErrorWait, MaxBodyBytes: keptBody, CanRetry: canRetry,
			RetryIf: func(o layer.Outcome[Rsp]) bool {
				return o.Err == nil && a.class(grpc, o).IsFailure() || a.retryableError(o)
			},
		})
	case route.AttemptTimeout > 0:
		st = st.ResponseHeaderTimeout(route.AttemptTimeout)
	}
	if route.Hedge > 0 && budget != nil {
		st = st.Hedge(layer.HedgePolicy[Req]{
			Budget: budget, MinDelay: route.Hedge, MaxDelay: route.Hedge, MaxBodyBytes: keptBody, HedgeIf: canRetry,
		})
	}
	if a.metrics != nil {
		st = st.Metrics(a.attempts)
	}
	return a.changeRequests(a.addAttemptTimeouts(st))
}

// retryableError reports whether an attempt with the outcome o may be retried because of its error.
// It returns true if the attempt exceeded its time limit, or if its error has the class Retryable.
// It returns false for a rejection (ErrNotReady).
func (a *routeStack[Req, Rsp]) retryableError(o layer.Outcome[Rsp]) bool {
	return o.Err != nil && !errors.Is(o.Err, layer.ErrNotReady) &&
		(errors.Is(o.Err, layer.ErrAttemptTimeout) || a.layers.classify(o) == layer.Retryable)
}

// routeReplayer is the Replayer of the layers of a route. Its RetryAfter ignores a Retry-After in a
// response, as linkerd does. Its other methods are those of the Replayer that was passed to
// WithRouteLayers.
type routeReplayer[Req, Rsp any] struct {
	layer.Replayer[Req, Rsp]
	access layer.Accessor[Req, Rsp]
}

func (routeReplayer[Req, Rsp]) RetryAfter(Rsp, error) (time.Duration, bool) { return 0, false }

// Outline returns the HTTP status and the gRPC status of rsp as a short text for an
// explanation.
func (r routeReplayer[Req, Rsp]) Outline(rsp Rsp) string {
	outline := "status " + strconv.Itoa(r.access.Status(rsp))
	code, ok := grpcCode(r.access.ResponseHeader(rsp))
	if !ok {
		code, ok = grpcCode(r.access.ResponseTrailer(rsp))
	}
	if ok {
		outline += ", gRPC status " + strconv.FormatUint(uint64(code), 10)
	}
	return outline
}
