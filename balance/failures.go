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
	penalty  time.Duration         // 0: by what is usual; less: none
	usual    *usual
	after    func(Rsp, error) (time.Duration, bool)
}

// The default penalty: as many times what is usual that an endpoint which failed
// once is tried again after about three decays, whether a good response takes a
// millisecond or a second; and no more than linkerd's load biaser takes.
const (
	timesUsual = 20
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
	if f.classify == nil {
		return verdict{}
	}
	class := f.classify.Judge(ctx, out)
	if !class.Failed() {
		return verdict{ignored: class == layer.Ignorable}
	}
	v := verdict{failed: true, throttled: class == layer.Throttled, price: max(f.penalty, 0)}
	if f.penalty == 0 {
		v.price = min(time.Duration(f.usual.read())*timesUsual, mostUsual)
	}
	if f.after != nil {
		if asked, ok := f.after(out.Response, out.Err); ok {
			v.price = max(v.price, min(asked, longest))
		}
	}
	return v
}

// overdue reports whether a response that is not here after such a wait is the
// endpoint's failure, and not that of a caller who allows it little time.
func (f *failures[Rsp]) overdue(wait time.Duration) bool {
	return f.classify != nil && wait > tooLong(float64(f.usual.read()))
}

// tooLong is the default penalty where that is more than is usual by far.
func tooLong(usual float64) time.Duration {
	return time.Duration(max(min(usual*timesUsual, float64(mostUsual)), 2*usual))
}

// Classify says which responses are failures. Each counts as if it had taken
// the policy's Penalty, and no less than what was expected of the endpoint, so that
// one which fails fast gets less traffic and not more. What no endpoint is to
// blame for, such as a caller who left, is not asked about; nor is a caller's
// deadline, if it was not plenty: see [Ejection]. What is Ignorable is neither good
// nor bad, and its latency counts only if it is longer than was expected. The
// default is that there are no failures: an error counts like a response.
//
// Give it the classifier of the stack: httplayer.Classify, grpclayer.Classify.
func Classify[Rsp any](c layer.Classifier[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.failures.classify = c })
}

// RetryAfter says how long a failed response asks to be left alone, as the
// After of a layer.Resend does. What is longer than the penalty is taken
// in its place, up to 5 minutes.
func RetryAfter[Rsp any](after func(rsp Rsp, err error) (time.Duration, bool)) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.failures.after = after })
}
