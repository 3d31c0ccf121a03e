package kitlayer

import (
	"github.com/gotower/gotower/layer"
)

// NewStack returns a stack without layers for a go-kit endpoint. Its layers use [Kit], unless
// opts replace it or parts of it.
//
// A go-kit stack is for one endpoint, which is one method of a service. A Retry in it therefore
// sends every request again that failed with a retryable error. If the method must not be called
// twice, as for a payment, you should leave Retry out or set RetryPolicy.CanRetry.
//
//	kitlayer.NewStack[SumRequest, SumResponse]().
//		Timeout(5 * time.Second).
//		Retry(layer.RetryPolicy[SumRequest, SumResponse]{}).
//		Service(balancer)
func NewStack[Req, Rsp any](opts ...layer.Option[Rsp]) layer.Stack[Req, Rsp] {
	return layer.NewStack[Req](append([]layer.Option[Rsp]{layer.WithProtocol(Kit[Req, Rsp]{})}, opts...)...)
}

// Kit is the [layer.Protocol] of go-kit. It sends requests again unchanged. It treats all
// requests as idempotent; see [NewStack] for a method that must not be called twice.
type Kit[Req, Rsp any] struct {
	layer.BaseProtocol[Req, Rsp]
}

// Classify returns the result of the function [Classify].
func (Kit[Req, Rsp]) Classify(o layer.Outcome[Rsp]) layer.Class { return Classify(o) }
