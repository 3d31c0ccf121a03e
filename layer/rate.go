package layer

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// RateLimit admits perSecond requests a second, and up to burst of them at
// once, and refuses the rest: a token bucket of size burst, full at first.
//
// Admission: a request takes one token and does not give it back, not even
// where inner refuses it: put a [Limit] above rather than below. A refusal
// here takes none. Ready waits until there is a token, without taking it, then
// for inner; one timer serves all who wait.
//
// Cancellation: a request whose context is done is refused and takes no token.
//
// Body: not touched.
//
// Errors: a refusal is an [Error] of kind [ErrNotReady] whose After is when
// there will be a token, rounded up to a sixteenth of the time between two;
// see [RetryAfter].
//
// Cost: a clock reading and a lock, no allocation, refused or not.
//
// The bucket is one for all callers of the service. A perSecond or a burst of
// 0 or less, or one that is not a number, admits nothing; an infinite perSecond
// admits everything.
func RateLimit[Req, Rsp any](perSecond float64, burst int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	terms := newRateTerms(perSecond, burst, "rate", o.target)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &rateLimit[Req, Rsp]{
			Service: next,
			target:  o.target,
			terms:   terms,
			bucket:  terms.bucket(),
			refused: tally{to: o.to.LayerRejections.With("layer", "rate")},
		}
	}
}

type rateLimit[Req, Rsp any] struct {
	Service[Req, Rsp]
	target  string
	terms   *rateTerms
	mu      sync.Mutex
	bucket  *rate.Limiter
	alarm   rateAlarm
	refused tally
}

func (l *rateLimit[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if err := l.alarm.wait(ctx, l.untilToken); err != nil {
			return err
		}
		if err := l.Service.Ready(ctx); err != nil {
			return err
		}
		if l.untilToken() <= 0 {
			return nil
		}
	}
}

func (l *rateLimit[Req, Rsp]) untilToken() time.Duration {
	return l.terms.until(1, l.bucket, time.Now())
}

func (l *rateLimit[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if gone(ctx) {
		return none, refuseDone(ctx, "rate", l.target)
	}
	if refusal := l.take(); refusal != nil {
		l.refused.inc()
		return none, refusal
	}
	return l.Service.Call(ctx, req)
}

// take takes a token, or says why not. The clock is read with mu held: a
// bucket that is shown an earlier time than before goes back to it, and counts
// what came since then twice.
func (l *rateLimit[Req, Rsp]) take() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); !l.bucket.AllowN(now, 1) {
		return l.terms.refusal(l.bucket, now)
	}
	return nil
}

func (l *rateLimit[Req, Rsp]) Next() Service[Req, Rsp] { return l.Service }

func (l *rateLimit[Req, Rsp]) Describe() Node {
	return Node{Name: "rate", State: State{
		{"per_second", l.terms.perSecond}, {"burst", l.terms.burst},
		{"tokens", l.terms.tokens(l.bucket, time.Now())}, {"refused", l.refused.n.Load()},
	}}
}
