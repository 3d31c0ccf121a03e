package balance

import (
	"context"
	"time"

	"github.com/gotower/gotower/layer"
)

// failures is what a failed response costs. A failure comes quickly, as a rule:
// by its latency alone an endpoint that fails would look better than one that
// works, and draw the traffic.
type failures[Rsp any] struct {
	classify layer.Classifier[Rsp] // nil: nothing is a failure
	penalty  time.Duration
	after    func(Rsp, error) (time.Duration, bool)
}

// longest is what an endpoint can ask for at the most: linkerd's figure.
const longest = 5 * time.Minute

// price is the latency that an outcome counts as at the least; 0 is its own.
func (f *failures[Rsp]) price(ctx context.Context, out layer.Outcome[Rsp]) time.Duration {
	if f.classify == nil || !f.classify.Judge(ctx, out).Failed() {
		return 0
	}
	price := f.penalty
	if f.after != nil {
		if asked, ok := f.after(out.Response, out.Err); ok {
			price = max(price, min(asked, longest))
		}
	}
	return price
}

// Classify says which responses are failures. Each counts as if it had taken
// the [Penalty], and no less than what was expected of the endpoint, so that
// one which fails fast gets less traffic and not more. What no endpoint is to
// blame for, such as a caller who left, is not asked about. The default is that
// there are no failures: an error counts like a response.
//
// Give it the classifier of the stack: httplayer.Classify, grpclayer.Classify.
func Classify[Rsp any](c layer.Classifier[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.failures.classify = c })
}

// Penalty is the latency that a failure counts as, where [Classify] says what
// one is. The default is that of linkerd's load biaser, 5 s: with the default
// [Decay], an endpoint that failed once gets next to nothing for as long as
// others take less than that, and is tried again after half a minute where
// they take 200 ms. A penalty of 0 or less is none.
func Penalty[Rsp any](d time.Duration) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.failures.penalty = max(d, 0) })
}

// RetryAfter says how long a failed response asks to be left alone, as the
// After of a layer.Resend does. What is longer than the [Penalty] is taken in
// its place, up to 5 minutes.
func RetryAfter[Rsp any](after func(rsp Rsp, err error) (time.Duration, bool)) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.failures.after = after })
}
