package profiles

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// mostAccounts is how many budgets of late a Router knows. One that comes back,
// after a profile without it or between those of two writers, has not grown.
const mostAccounts = 4

// account is a budget with what is in it.
type account struct {
	RetryBudget
	*layer.Budget
}

// account returns what the RetryBudget stands for in requests: nil without a
// valid one, and the account that it had of late, with what is in it. It is
// called with mu held.
func (r *Router[Req, Rsp]) account(p *Profile) *layer.Budget {
	b := p.RetryBudget
	if b == nil {
		return nil
	}
	if err := b.Validate(); err != nil {
		r.log.Warn("left out of a profile", "target", r.target, "err", err)
		return nil
	}
	if i := slices.IndexFunc(r.accounts, func(a account) bool { return a.RetryBudget == *b }); i >= 0 {
		known := r.accounts[i]
		r.accounts = append(slices.Delete(r.accounts, i, i+1), known)
		return known.Budget
	}
	// To NewBudget 0 is the default.
	ratio, perSecond := b.Ratio, int(b.MinPerSecond)
	if ratio == 0 {
		ratio = -1
	}
	if perSecond == 0 {
		perSecond = -1
	}
	fresh := account{*b, layer.NewBudget(b.TTL, ratio, perSecond)}
	if len(r.accounts) == mostAccounts {
		r.accounts = slices.Delete(r.accounts, 0, 1)
	}
	r.accounts = append(r.accounts, fresh)
	return fresh.Budget
}

// budgeted is what a route does within the budget. A route outlives profiles,
// so it asks that of the request, and is made anew when that is another one.
type budgeted[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // below
	router                  *Router[Req, Rsp]
	make                    func(*layer.Budget) layer.Service[Req, Rsp]
	made                    atomic.Pointer[madeWith[Req, Rsp]] // nil before the first request
}

type madeWith[Req, Rsp any] struct {
	budget *layer.Budget
	layer.Service[Req, Rsp]
}

func (b *budgeted[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	s, _ := ctx.Value(b.router).(*snapshot[Req, Rsp])
	if s == nil {
		s = b.router.current.Load()
	}
	made := b.made.Load()
	if made == nil || made.budget != s.budget {
		made = b.remake(s, made)
	}
	return made.Service.Call(ctx, req)
}

// remake does not keep what is for a request that began with an older profile.
func (b *budgeted[Req, Rsp]) remake(s *snapshot[Req, Rsp], old *madeWith[Req, Rsp]) *madeWith[Req, Rsp] {
	made := &madeWith[Req, Rsp]{s.budget, b.make(s.budget)}
	if b.router.current.Load().budget != s.budget || b.made.CompareAndSwap(old, made) {
		return made
	}
	if other := b.made.Load(); other.budget == s.budget {
		return other
	}
	return made
}

// Next is what requests go to now.
func (b *budgeted[Req, Rsp]) Next() layer.Service[Req, Rsp] {
	if made := b.made.Load(); made != nil {
		return made.Service
	}
	return b.Service
}

// Describe says no more than that it is there: what the budget allows is the
// Router's to show, and Next is shown too.
func (b *budgeted[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "budgeted"} }

// retryBody is how much of a request body linkerd's proxy keeps.
const retryBody = 64 << 10

// unreachedWait is how long a retry may have to wait for an endpoint that could
// not be reached. It is asked about four times by then.
const unreachedWait = time.Second

// atOnce is a Replayer that ignores the wait that a response requests.
type atOnce[Req, Rsp any] struct {
	layer.Replayer[Req, Rsp]
	route *acting[Req, Rsp]
}

func (atOnce[Req, Rsp]) RetryAfter(Rsp, error) (time.Duration, bool) { return 0, false }

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
			Backoff:       layer.Backoff{Min: 1, Max: 1}, // a nanosecond; 0 would be the default
			MaxRetryAfter: unreachedWait, CanRetry: resendable,
			RetryIf: func(o layer.Outcome[Rsp]) bool { return a.retryable(grpc, o) },
		}
		if a.route.MaxRetries == 0 {
			policy.MaxAttempts = maxRetries + 1
		}
		st = st.Retry(policy)
	case a.route.AttemptTimeout > 0:
		st = st.Retry(layer.RetryPolicy[Req, Rsp]{MaxAttempts: 1, AttemptTimeout: a.route.AttemptTimeout})
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
	switch {
	case errors.Is(o.Err, layer.ErrNotReady):
		return a.unreached(o.Err)
	case errors.Is(o.Err, layer.ErrAttemptTimeout):
		return true
	case o.Err != nil:
		return a.judge(grpc, o) == layer.Retryable
	}
	return a.judge(grpc, o).IsFailure()
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
