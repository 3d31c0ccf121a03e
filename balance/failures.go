package balance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// failures is what a failed response costs. A failure comes quickly, as a rule:
// by its latency alone an endpoint that fails would look better than one that
// works, and draw the traffic.
type failures[Rsp any] struct {
	classifier atomic.Pointer[layer.Classifier[Rsp]] // nil: byError
	byError    layer.Classifier[Rsp]                 // made once, because it is allocated
	penalty    time.Duration                         // 0: by what is usual; less: none
	usual      *usual
	after      func(Rsp, error) (time.Duration, bool)
}

// use takes c as the classifier of all endpoints, unless there is one or c is nil.
// It is not safe for concurrent use; judge may run at the same time.
func (f *failures[Rsp]) use(c layer.Classifier[Rsp]) {
	if c != nil && f.classifier.Load() == nil {
		f.classifier.Store(&c)
	}
}

func (f *failures[Rsp]) classify() layer.Classifier[Rsp] {
	if c := f.classifier.Load(); c != nil {
		return *c
	}
	return f.byError
}

// The default penalty: as many times what is usual that an endpoint which failed
// once is tried again after about three decays, whether a good response takes a
// millisecond or a second; and no more than linkerd's load biaser takes. It is
// based on at least a millisecond, because a burst of requests raises latencies
// below that to many times what was usual.
const (
	timesUsual = 20
	leastUsual = time.Millisecond
	mostUsual  = 5 * time.Second
)

// longest is what an endpoint can ask for at the most: linkerd's figure.
const longest = 5 * time.Minute

// verdict is what an outcome means for the endpoint.
type verdict struct {
	failed    bool
	throttled bool          // it failed, and the endpoint is well: it asks for fewer requests
	ignored   bool          // it tells nothing
	price     time.Duration // the latency that it counts as at the least; 0 is its own
}

// judge says what an outcome means.
func (f *failures[Rsp]) judge(ctx context.Context, out layer.Outcome[Rsp]) verdict {
	class := f.classify().Classify(ctx, out)
	if !class.IsFailure() {
		return verdict{ignored: class == layer.Ignorable}
	}
	v := verdict{failed: true, throttled: class == layer.Throttled, price: max(f.penalty, 0)}
	if f.penalty == 0 {
		v.price = min(max(time.Duration(f.usual.read()), leastUsual)*timesUsual, mostUsual)
	}
	if f.after != nil {
		if asked, ok := f.after(out.Response, out.Err); ok {
			v.price = max(v.price, min(asked, longest))
		}
	}
	return v
}

// WithClassifier sets which responses are failures. The default is the classifier of
// the endpoints: that of the first endpoint whose service has one, see
// [layer.ClassifierOf], or [layer.DefaultClassifier] if none has. The endpoints of
// httplayer, grpclayer and kitlayer have the classifier of their protocol.
//
// A failure counts as if it had taken the policy's Penalty, and no less than the
// expected latency of the endpoint, so that an endpoint that fails fast gets less
// traffic. A classifier is not asked about refusals, and about callers that cancel.
// A deadline without an answer counts from the third in a row, see [OutlierDetection]. An
// Ignorable response is neither good nor bad; its latency counts only if it is
// longer than expected.
func WithClassifier[Rsp any](c layer.Classifier[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.classify = c })
}

// WithRetryAfter says how long a failed response asks to be left alone, as the
// After of a layer.Replayer does. What is longer than the penalty is taken
// in its place, up to 5 minutes.
func WithRetryAfter[Rsp any](after func(rsp Rsp, err error) (time.Duration, bool)) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.retryAfter = after })
}
