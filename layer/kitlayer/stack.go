package kitlayer

import (
	"context"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
)

// NewStack returns a stack without layers for an endpoint of go-kit. By default its layers
// use [Classify], and its Retry and Hedge send requests again unchanged. opts override these
// defaults.
//
// A stack of go-kit is for one endpoint, which is one method of a service. Therefore a
// Retry in it sends every request again that failed with a retryable error. If the method
// must not be called twice, as for a payment, leave Retry out or set RetryPolicy.CanRetry.
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

// resend is the [layer.Replayer] of go-kit. It sends requests again unchanged. It treats all
// requests as idempotent; see [NewStack] for a method that must not be called twice.
type resend[Req, Rsp any] struct{}

func (resend[Req, Rsp]) Idempotent(Req) bool { return true }

func (resend[Req, Rsp]) Replay(Req, int64) layer.Replay[Req] { return nil }

func (resend[Req, Rsp]) RetryAfter(_ Rsp, err error) (time.Duration, bool) {
	return layer.RetryAfter(err)
}

func (resend[Req, Rsp]) Peek(_ context.Context, rsp Rsp) (Rsp, bool) { return rsp, false }

func (resend[Req, Rsp]) Drain(Rsp) {}
