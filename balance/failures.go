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
	byError    layer.Classifier[Rsp]                 // the default; created once per balancer
	penalty    time.Duration                         // see Policy: 0 means a multiple of the median; negative means none
	median     *medianLatency
}

// use sets the classifier of all endpoints to c. It does nothing if a classifier is already
// set or c is nil. Calls of use must not be concurrent.
func (f *failures[Rsp]) use(c layer.Classifier[Rsp]) {
	if c != nil && f.classifier.Load() == nil {
		f.classifier.Store(&c)
	}
}

// The parameters of the default penalty of a failure. This penalty is penaltyFactor times the
// median latency, and at most maxPenalty. With this factor, an endpoint that failed once is tried
// again after about three times [Policy].Decay. A median below minPenaltyBase counts as
// minPenaltyBase. Otherwise the latencies of a burst of requests, which are multiples of a short
// median, could exceed the penalty. linkerd's load biaser also uses maxPenalty.
const (
	penaltyFactor  = 20
	minPenaltyBase = time.Millisecond
	maxPenalty     = 5 * time.Second
)

// result is the classification of a response by the classifier.
type result struct {
	failed    bool
	throttled bool          // whether the class is layer.Throttled; not a consecutive failure
	ignored   bool          // neither a success nor a failure
	penalty   time.Duration // the response counts as having at least this latency
}

func (f *failures[Rsp]) classify(ctx context.Context, out layer.Outcome[Rsp]) result {
	c := f.classifier.Load()
	if c == nil {
		if out.Err == nil {
			return result{} // as byError, but faster
		}
		c = &f.byError
	}
	class := c.Classify(ctx, out)
	if !class.IsFailure() {
		return result{ignored: class == layer.Ignorable}
	}
	r := result{failed: true, throttled: class == layer.Throttled, penalty: max(f.penalty, 0)}
	if f.penalty == 0 {
		r.penalty = min(max(time.Duration(f.median.read()), minPenaltyBase)*penaltyFactor, maxPenalty)
	}
	return r
}

// WithClassifier sets the classifier that determines which responses are failures. The
// default is the classifier of the first endpoint that has one: see [layer.ClassifierOf].
// If no endpoint has one, it is [layer.DefaultClassifier]. The endpoints of httplayer,
// grpclayer and kitlayer have the classifier of their protocol.
//
// The latency of a failure is recorded as the longest of three: the Penalty of the [Policy], the
// real latency and the expected latency. The latency of an Ignorable response counts only if it is
// longer than expected. Rejections and canceled requests are not classified.
func WithClassifier[Rsp any](c layer.Classifier[Rsp]) Option[Rsp] {
	return func(o *options[Rsp]) { o.classify = c }
}
