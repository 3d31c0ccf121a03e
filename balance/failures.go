package balance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// failures classifies responses and determines the penalty of a failure. Without a
// penalty, an endpoint that fails fast would seem fast and attract requests.
type failures[Rsp any] struct {
	classifier atomic.Pointer[layer.Classifier[Rsp]] // nil means byError
	byError    layer.Classifier[Rsp]                 // the default; created once, because it is allocated
	penalty    time.Duration                         // 0 means by the median; negative means none
	median     *medianLatency
}

// use sets the classifier of all endpoints, unless one is set or c is nil. It must not
// be called concurrently with itself.
func (f *failures[Rsp]) use(c layer.Classifier[Rsp]) {
	if c != nil && f.classifier.Load() == nil {
		f.classifier.Store(&c)
	}
}

func (f *failures[Rsp]) current() layer.Classifier[Rsp] {
	if c := f.classifier.Load(); c != nil {
		return *c
	}
	return f.byError
}

// These are the parameters of the default penalty. With penaltyFactor, an endpoint that
// failed once is tried again after about three decays. The median counts as at least
// minPenaltyBase, because a burst of requests multiplies latencies below a millisecond.
// maxPenalty is that of linkerd's load biaser.
const (
	penaltyFactor  = 20
	minPenaltyBase = time.Millisecond
	maxPenalty     = 5 * time.Second
)

// result is the classification of a response.
type result struct {
	failed    bool
	throttled bool          // failed, but the endpoint is healthy
	ignored   bool          // neither a success nor a failure
	penalty   time.Duration // the response counts as having at least this latency
}

func (f *failures[Rsp]) classify(ctx context.Context, out layer.Outcome[Rsp]) result {
	class := f.current().Classify(ctx, out)
	if !class.IsFailure() {
		return result{ignored: class == layer.Ignorable}
	}
	r := result{failed: true, throttled: class == layer.Throttled, penalty: max(f.penalty, 0)}
	if f.penalty == 0 {
		r.penalty = min(max(time.Duration(f.median.read()), minPenaltyBase)*penaltyFactor, maxPenalty)
	}
	return r
}

// WithClassifier sets the function that determines which responses are failures. The
// default is the classifier of the first endpoint whose service has one, see
// [layer.ClassifierOf], or [layer.DefaultClassifier]. The endpoints of httplayer,
// grpclayer and kitlayer have the classifier of their protocol.
//
// A failure counts as having the latency Penalty of the [Policy], or the expected
// latency if that is longer. The latency of an Ignorable response counts only if it is
// longer than expected. Rejections and canceled requests are not classified.
func WithClassifier[Rsp any](c layer.Classifier[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.classify = c })
}
