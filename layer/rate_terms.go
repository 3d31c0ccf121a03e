package layer

import (
	"math"
	"strconv"
	"time"

	"golang.org/x/time/rate"
)

// rateTerms are what all buckets of a layer have in common. They never change.
type rateTerms struct {
	perSecond float64
	burst     int
	refusals  [rateSteps]Error // by how long a token takes, so that none is made for each
}

// rateSteps is how finely a refusal says when there will be a token.
const rateSteps = 16

// rateNever is how long it takes for a token to come that does not.
const rateNever time.Duration = math.MaxInt64

func newRateTerms(perSecond float64, burst int, layer, target string) *rateTerms {
	t := &rateTerms{perSecond: perSecond, burst: burst}
	if !(perSecond > 0) || burst <= 0 { // not a number, too
		t.perSecond, t.burst = 0, 0
	}
	for i := range t.refusals {
		t.refusals[i] = Error{Layer: layer, Target: target, Kind: errShed, Reason: t.reason()}
		if t.perSecond > 0 {
			t.refusals[i].RetryAfter = t.duration(float64(i+1) / rateSteps)
		}
	}
	return t
}

func (t *rateTerms) reason() string {
	if t.perSecond == 0 {
		return "the rate is 0"
	}
	return "out of tokens at " + strconv.FormatFloat(t.perSecond, 'g', -1, 64) + " a second"
}

// bucket returns a new one, full.
func (t *rateTerms) bucket() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(min(t.perSecond, float64(rate.Inf))), t.burst)
}

// tokens is how many b has, which an infinite rate makes no difference to.
func (t *rateTerms) tokens(b *rate.Limiter, now time.Time) float64 {
	if t.perSecond >= float64(rate.Inf) {
		return float64(t.burst)
	}
	return b.TokensAt(now)
}

// until is how long it takes until b has n tokens, if nobody takes any. Less than a nanosecond counts as none, as it does for Allow.
func (t *rateTerms) until(n float64, b *rate.Limiter, now time.Time) time.Duration {
	if t.perSecond >= float64(rate.Inf) {
		return 0
	}
	return t.duration(n - b.TokensAt(now))
}

// duration is how long it takes for tokens to come: at a rate of 0 for ever.
func (t *rateTerms) duration(tokens float64) time.Duration {
	if tokens <= 0 {
		return 0
	}
	d := tokens / t.perSecond * float64(time.Second)
	if d >= float64(rateNever) {
		return rateNever
	}
	return time.Duration(d)
}

// refusal says that b has no token.
func (t *rateTerms) refusal(b *rate.Limiter, now time.Time) *Error {
	step := int(math.Ceil((1-b.TokensAt(now))*rateSteps)) - 1
	// Others may have come or gone since now.
	return &t.refusals[min(max(step, 0), rateSteps-1)]
}
