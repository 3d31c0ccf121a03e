package kitlayer

import (
	"context"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
)

// NewStack returns an empty stack for an endpoint of go-kit. [Classify] is its
// classifier, and requests are sent again unchanged. Later options override.
//
// A stack of go-kit is for one endpoint, which is one method of a service. So a Retry in it
// repeats every request that failed with an error. Leave Retry out for a method that must not
// be called twice, such as a payment, or set RetryPolicy.CanRetry.
//
//	kitlayer.NewStack[SumRequest, SumResponse]().
//		Timeout(5 * time.Second).
//		Retry(layer.RetryPolicy[SumRequest, SumResponse]{}).
//		Service(balancer)
func NewStack[Req, Rsp any](opts ...layer.Option[Rsp]) layer.Stack[Req, Rsp] {
	return layer.NewStack[Req](slices.Concat([]layer.Option[Rsp]{
		layer.WithClassifier(Classify[Rsp]),
		layer.WithReplayer[Req, Rsp](resend[Req, Rsp]{}),
	}, opts)...)
}

// resend is the [layer.Replayer] of go-kit. It ignores the fields of messages,
// because they have no known meaning.
type resend[Req, Rsp any] struct{}

func (resend[Req, Rsp]) Idempotent(Req) bool { return true }

func (resend[Req, Rsp]) Replay(Req, int64) layer.Replay[Req] { return nil }

func (resend[Req, Rsp]) RetryAfter(_ Rsp, err error) (time.Duration, bool) {
	return layer.RetryAfter(err)
}

func (resend[Req, Rsp]) Peek(_ context.Context, rsp Rsp) (Rsp, bool) { return rsp, false }

func (resend[Req, Rsp]) Drain(Rsp) {}
