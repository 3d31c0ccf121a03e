package balance

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// Option sets how a [Balancer] works.
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	policy     Policy
	complete   layer.Completion[Rsp] // nil if a response is over when Call returns
	classify   layer.Classifier[Rsp] // nil: that of the endpoints
	retryAfter func(Rsp, error) (time.Duration, bool)
	random     func() uint64
	to         Instruments
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	var o options[Rsp]
	if layer.HasBody[Rsp]() {
		o.complete = layer.AtEnd[Rsp]()
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if err := o.policy.Validate(); err != nil {
		panic(err.Error())
	}
	o.policy = o.policy.orDefault()
	o.to = o.to.orDiscard()
	return o
}

type optionFunc[Rsp any] func(*options[Rsp])

func (f optionFunc[Rsp]) apply(o *options[Rsp]) { f(o) }

// WithPolicy sets the policy. [New] panics if it is not valid.
func WithPolicy[Rsp any](p Policy) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.policy = p })
}

// WithCompletion says where a response ends: until then it counts as in flight. The
// default is [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}

// WithRand sets where random numbers come from, 64 bits at a time: for a
// simulation that shall be the same each time. It must be safe for concurrent
// use, as the balancer is. The default is that of math/rand/v2.
func WithRand[Rsp any](random func() uint64) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.random = random })
}

// WithMetrics sets where the balancer writes its metrics.
func WithMetrics[Rsp any](to Instruments) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.to = to })
}
