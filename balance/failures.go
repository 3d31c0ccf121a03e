package balance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// failures classifies responses and sets the penalties of failures. Without a penalty an
// endpoint that fails fast would seem fast and attract requests.
type failures[Rsp any] struct {
	classifier atomic.Pointer[layer.Classifier[Rsp]] // nil: byError
	byError    layer.Classifier[Rsp]                 // made once, because it is allocated
	penalty    time.Duration                         // 0: by the median; negative: none
	median     *medianLatency
}

// use sets the classifier of all endpoints, unless there is one or c is nil. It is not
// safe for concurrent use with itself.
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

// The default penalty. With this factor an endpoint that failed once is tried again after
// about three decays. The base is at least a millisecond, because a burst of requests
// raises latencies below that to many times the median. The maximum is that of linkerd's
// load biaser.
const (
	penaltyFactor  = 20
	minPenaltyBase = time.Millisecond
	maxPenalty     = 5 * time.Second
)

// result is the class of a response.
type result struct {
	failed    bool
	throttled bool          // failed, but the endpoint is healthy
	ignored   bool          // neither good nor bad
	penalty   time.Duration // least latency that it counts as
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

// WithClassifier sets which responses are failures. The default is the classifier of the
// first endpoint whose service has one, see [layer.ClassifierOf], or
// [layer.DefaultClassifier]. The endpoints of httplayer, grpclayer and kitlayer have the
// classifier of their protocol.
//
// A failure counts as the Penalty of the policy, and at least as the expected latency of
// the endpoint. An Ignorable response is neither good nor bad; its latency counts only if
// it is longer than expected. Rejections and canceled requests are not classified.
func WithClassifier[Rsp any](c layer.Classifier[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.classify = c })
}
