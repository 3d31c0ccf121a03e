package balance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// failures holds the classifier that tells failures from successes.
type failures[Rsp any] struct {
	classifier atomic.Pointer[layer.Classifier[Rsp]] // nil means byError
	byError    layer.Classifier[Rsp]                 // the default; created once per balancer
}

// use sets the classifier for all endpoints to c, unless one is already set or c is nil. Calls of
// use must not be concurrent.
func (f *failures[Rsp]) use(c layer.Classifier[Rsp]) {
	if c != nil && f.classifier.Load() == nil {
		f.classifier.Store(&c)
	}
}

// result is the classification of a response by the classifier.
type result uint8

// The order matters: results from failed on are failures, see isFailure.
const (
	success   result = iota
	ignored          // neither a success nor a failure
	failed           // an error, perhaps of the application
	throttled        // like failed, but not counted by OutlierDetection.ConsecutiveFailures
	refused          // the endpoint itself failed: layer.Retryable
	late             // a missed deadline that counts as a failure
)

// isFailure reports whether r counts as a failure of the endpoint.
func (r result) isFailure() bool { return r >= failed }

// classify returns the result of an outcome, as the classifier sees it.
func (f *failures[Rsp]) classify(ctx context.Context, out layer.Outcome[Rsp]) result {
	// Without a classifier, an error is a failure and everything else a success.
	c := f.classifier.Load()
	if c == nil {
		if out.Err == nil {
			return success // as byError, but faster
		}
		c = &f.byError
	}
	switch class := c.Classify(ctx, out); class {
	case layer.Success:
		return success
	case layer.Ignorable:
		return ignored
	case layer.Throttled:
		return throttled
	case layer.Retryable:
		return refused
	// A Failure, like an unknown class, is failed.
	case layer.Failure:
	}
	return failed
}

// WithClassifier sets the classifier that determines which responses are failures. The default is
// the classifier of the first endpoint that provides one: see [layer.ClassifierOf]. If none does,
// it is [layer.DefaultClassifier]. The endpoints of httplayer, grpclayer and kitlayer provide
// their protocol's classifier.
//
// The class determines how the balancer reacts: see "Failures" in the package documentation. The
// latency of a failure or an Ignorable response counts only if it is longer than expected.
// Rejections and canceled requests are not classified.
func WithClassifier[Rsp any](c layer.Classifier[Rsp]) Option[Rsp] {
	return func(o *options[Rsp]) { o.classify = c }
}

// These are the parameters from which [Policy].Penalty's default is computed. A median below
// minPenaltyBase counts as minPenaltyBase.
const (
	penaltyFactor  = 20
	minPenaltyBase = time.Millisecond
	maxPenalty     = 5 * time.Second
)

// penaltyAt returns the latency, in ns, that a failure costs at the given median latency: see
// [Policy].Penalty. 0 means that failures do not affect costs.
func (p *params) penaltyAt(median float32) float32 {
	// A negative penalty means that failures do not affect costs.
	if p.penalty != 0 {
		return max(float32(p.penalty), 0)
	}
	return min(max(median, float32(minPenaltyBase))*penaltyFactor, float32(maxPenalty))
}
