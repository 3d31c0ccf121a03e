package profiles

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer"
)

// retryBody is how much of a request body linkerd's proxy keeps.
const retryBody = 64 << 10

// unreachedWait is how long a retry may have to wait for an endpoint that could
// not be reached. It is asked about four times by then.
const unreachedWait = time.Second

// atOnce is a Resend that does not wait because a response asks for it.
type atOnce[Req, Rsp any] struct {
	layer.Replayer[Req, Rsp]
	route *acting[Req, Rsp]
}

func (atOnce[Req, Rsp]) RetryAfter(Rsp, error) (time.Duration, bool) { return 0, false }

// Peek is the protocol's, if it has one.
func (r atOnce[Req, Rsp]) Peek(ctx context.Context, rsp Rsp) (ahead Rsp, whole bool) {
	if p, ok := r.Replayer.(layer.TrailerPeeker[Rsp]); ok {
		return p.Peek(ctx, rsp)
	}
	return rsp, false
}

// Outline is what an explanation says of a response.
func (r atOnce[Req, Rsp]) Outline(rsp Rsp) string {
	access := r.route.access
	outline := "status " + strconv.Itoa(access.Status(rsp))
	code, ok := grpcCode(access.ResponseHeader(rsp))
	if !ok {
		code, ok = grpcCode(access.ResponseTrailer(rsp))
	}
	if ok {
		outline += ", gRPC status " + strconv.FormatUint(uint64(code), 10)
	}
	return outline
}

// again adds what sends a request more than once, and what counts that.
func (a *acting[Req, Rsp]) again(st layer.Stack[Req, Rsp], b *layer.Budget, grpc bool) layer.Stack[Req, Rsp] {
	resendable := a.standard.resend.Idempotent
	if a.route.Retryable && a.route.RetryNonIdempotent {
		resendable = func(Req) bool { return true }
	}
	if to := a.requests.Budget; to != nil && b == nil {
		to.Set(0) // there may have been one before
	}
	switch {
	case a.route.Retryable && b != nil:
		policy := layer.RetryPolicy[Req, Rsp]{
			Budget: b, MaxAttempts: a.route.MaxRetries + 1, AttemptTimeout: a.route.AttemptTimeout, MaxBodyBytes: retryBody,
			Backoff:        layer.Backoff{Min: 1, Max: 1}, // a nanosecond; 0 would be the default
			PassRejections: true, RetryConnectFailure: a.unreached, MaxRetryAfter: unreachedWait,
			CanRetry: resendable, RetryIf: func(o layer.Outcome[Rsp]) bool { return a.retryable(grpc, o) },
			Peek: func(rsp Rsp) bool { return a.head(grpc, rsp).awaits() },
		}
		if a.route.MaxRetries == 0 {
			policy.MaxAttempts = maxRetries + 1
		}
		st = st.Retry(policy)
	case a.route.AttemptTimeout > 0:
		st = st.Retry(layer.RetryPolicy[Req, Rsp]{
			MaxAttempts: 1, AttemptTimeout: a.route.AttemptTimeout, PassRejections: true,
			CanRetry: func(Req) bool { return false }, RetryIf: func(layer.Outcome[Rsp]) bool { return false },
		})
	}
	if a.route.Hedge > 0 && b != nil {
		st = st.Hedge(layer.HedgePolicy[Req]{
			Budget: b, MinDelay: a.route.Hedge, MaxDelay: a.route.Hedge, MaxBodyBytes: retryBody, HedgeIf: resendable,
		})
	}
	if a.measured != nil {
		st = st.Metrics(a.tries)
	}
	return a.changesRequests(st)
}

// judge is the class of an outcome by the route's classes.
func (a *acting[Req, Rsp]) judge(grpc bool, o layer.Outcome[Rsp]) layer.Class {
	if o.Err != nil {
		return a.standard.errs(o)
	}
	v := a.head(grpc, o.Response)
	if o.Ended {
		return v.end(a.access.ResponseTrailer(o.Response))
	}
	return v.class
}

func (a *acting[Req, Rsp]) retryable(grpc bool, o layer.Outcome[Rsp]) bool {
	class := a.judge(grpc, o)
	if o.Err != nil {
		return class == layer.Retryable
	}
	return class.IsFailure()
}

// head is what the head of a response says.
func (a *acting[Req, Rsp]) head(grpc bool, rsp Rsp) verdict {
	return a.classes.head(grpc, a.access.Status(rsp), a.access.ResponseHeader(rsp))
}

// unreached reports whether a refusal is that of an endpoint to which there was
// no connection. linkerd's proxy makes a response of that, of 502 or 504, right
// above the endpoint. That of a balancer, which knows of no endpoint that is
// ready, it makes one above the retries; so it is passed here.
func (a *acting[Req, Rsp]) unreached(refusal error) bool {
	below := refusal
	for {
		var e *layer.Error
		switch {
		case !errors.As(below, &e):
			return false
		case e.Layer == layerName: // the split, which asked all of its parts
			below = e.Err
		default:
			return e.Layer == "endpoint" && a.standard.errs(layer.Outcome[Rsp]{Err: refusal}) == layer.Retryable
		}
	}
}
