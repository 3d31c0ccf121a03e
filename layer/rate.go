package layer

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/reqctx"
)

// RateLimit admits perSecond requests per second with bursts of up to burst requests, and rejects
// others. It is a token bucket that holds up to burst tokens and is full at first.
//
// Admission: a request takes one token. The token is not returned if inner rejects the request.
// Therefore you should place a [Limit] above this layer, so that its rejections take no token.
// Ready waits until a token is available, then for inner.
//
// Cancellation: a request is rejected, and takes no token, if its context has ended.
//
// Body: not touched.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady]. Its RetryAfter is the time until the
// next token, rounded up to a sixteenth of the time between two tokens.
//
// Cost: a clock reading and a lock, without an allocation.
//
// All callers of the service share the bucket. A rate or a burst of 0 rejects every request, and
// an infinite rate admits every request. Negative values panic.
func RateLimit[Req, Rsp any](perSecond float64, burst int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("RateLimit: rate", perSecond, 0)
	checkAtLeast("RateLimit: burst", burst, 0)
	o := newOptions(opts)
	terms := newRateTerms(perSecond, burst, "rate", o.target)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &rateLimit[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			target:   o.target,
			terms:    terms,
			bucket:   terms.bucket(),
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "rate")},
		}
	}
}

// RateLimit adds a [RateLimit] layer, which admits perSecond requests per second and bursts of up
// to burst requests.
func (s Stack[Req, Rsp]) RateLimit(perSecond float64, burst int) Stack[Req, Rsp] {
	return s.With("rate", RateLimit[Req](perSecond, burst, s.opts...))
}

// rateLimit is the service of [RateLimit].
type rateLimit[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	target   string
	terms    *rateTerms
	mu       sync.Mutex // guards bucket between reading the clock and taking a token
	bucket   *rate.Limiter
	rejected tally
}

// Ready waits until there is a token and the service below is ready. It takes no token.
func (l *rateLimit[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if d := l.untilToken(); d > 0 {
			if err := backoff.Sleep(ctx, d); err != nil {
				// The prepared rejection is shared by all requests, so its copy is changed.
				rejection := *l.terms.rejection(l.bucket, time.Now())
				rejection.Kind = err
				return &rejection
			}
			continue
		}
		if err := l.Service.Ready(ctx); err != nil {
			return err
		}
		// Another request may have taken the token meanwhile.
		if l.untilToken() <= 0 {
			return nil
		}
	}
}

// untilToken returns the time until the bucket holds a token, or 0 if it holds one.
func (l *rateLimit[Req, Rsp]) untilToken() time.Duration {
	return l.terms.waitFor(1, l.bucket, time.Now())
}

// Call takes a token and sends req. Without a token it rejects the request.
func (l *rateLimit[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "rate", l.target)
	}
	if rejection := l.take(); rejection != nil {
		l.rejected.inc()
		return rsp, rejection
	}
	return l.Service.Call(ctx, req)
}

// take takes a token and returns nil, or returns the rejection if there is none. It reads the clock
// with mu held: if concurrent calls used their times in another order, the bucket would count tokens
// twice.
func (l *rateLimit[Req, Rsp]) take() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); !l.bucket.AllowN(now, 1) {
		return l.terms.rejection(l.bucket, now)
	}
	return nil
}

// Describe returns the rate and how many requests were rejected.
func (l *rateLimit[Req, Rsp]) Describe() Node {
	return Node{Name: "rate", State: State{
		{"per_second", l.terms.perSecond}, {"burst", l.terms.burst},
		{"tokens", l.terms.tokens(l.bucket, time.Now())}, {"rejected", l.rejected.n.Load()},
	}}
}

// rateTerms holds what all token buckets of one layer share: the rate, the burst and the prepared
// rejections. It is immutable.
type rateTerms struct {
	perSecond  float64
	burst      int
	rejections [rateSteps]Error // the rejections, one for each value of RetryAfter
}

// rateSteps is how many different values of RetryAfter one layer's rejections use. The rejections
// are made in advance, one for each value.
const rateSteps = 16

// rateNever is returned as the time to the next token if no token will arrive.
const rateNever time.Duration = math.MaxInt64

// newRateTerms returns the terms of a layer. A rate of 0 or a burst of 0 rejects everything.
func newRateTerms(perSecond float64, burst int, layer, target string) *rateTerms {
	t := &rateTerms{perSecond: perSecond, burst: burst}
	if perSecond == 0 || burst == 0 {
		t.perSecond, t.burst = 0, 0
	}
	// Rejection i is for a wait of (i+1)/rateSteps of the time between two tokens.
	for i := range t.rejections {
		t.rejections[i] = Error{Layer: layer, Target: target, Kind: errShed, Reason: t.reason()}
		if t.perSecond > 0 {
			t.rejections[i].RetryAfter = t.duration(float64(i+1) / rateSteps)
		}
	}
	return t
}

// reason returns the text of rejections.
func (t *rateTerms) reason() string {
	if t.perSecond == 0 {
		return "the rate is 0"
	}
	return "out of tokens at " + strconv.FormatFloat(t.perSecond, 'g', -1, 64) + " a second"
}

// bucket returns a new token bucket that is full.
func (t *rateTerms) bucket() *rate.Limiter {
	// rate.Inf is the largest float64, but perSecond may be infinite.
	return rate.NewLimiter(rate.Limit(min(t.perSecond, float64(rate.Inf))), t.burst)
}

// tokens returns the number of tokens in b at the time now. At an infinite rate b is always
// full.
func (t *rateTerms) tokens(b *rate.Limiter, now time.Time) float64 {
	if t.perSecond >= float64(rate.Inf) {
		return float64(t.burst)
	}
	return b.TokensAt(now)
}

// waitFor returns the time until b holds n tokens. Times below a nanosecond count as 0, as in the
// bucket's AllowN.
func (t *rateTerms) waitFor(n float64, b *rate.Limiter, now time.Time) time.Duration {
	if t.perSecond >= float64(rate.Inf) {
		return 0
	}
	return t.duration(n - b.TokensAt(now))
}

// duration returns the time in which a bucket gets the given number of new tokens.
func (t *rateTerms) duration(tokens float64) time.Duration {
	if tokens <= 0 {
		return 0
	}
	d := tokens / t.perSecond * float64(time.Second)
	// A larger number would overflow a Duration.
	if d >= float64(rateNever) {
		return rateNever
	}
	return time.Duration(d)
}

// rejection returns the rejection of a request at the time now: the prepared one whose RetryAfter is
// the time until b's next token, rounded up.
func (t *rateTerms) rejection(b *rate.Limiter, now time.Time) *Error {
	// The missing part of a token in steps, rounded up. The index is one less: see newRateTerms.
	step := int(min(math.Ceil((1-b.TokensAt(now))*rateSteps), rateSteps)) - 1
	// Another goroutine may have changed b after now.
	return &t.rejections[min(max(step, 0), rateSteps-1)]
}
