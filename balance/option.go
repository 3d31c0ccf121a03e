package balance

import (
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Option configures a [Balancer].
type Option[Rsp any] func(*options[Rsp])

// options is what the [Option] values set.
type options[Rsp any] struct {
	policy      Policy
	complete    layer.Completion[Rsp] // nil if a response ends when Call returns
	classify    layer.Classifier[Rsp] // nil means the classifier of the endpoints
	random      func() uint64         // nil means math/rand
	instruments Instruments
	events      func(Event) // may be nil
	failFast    bool
}

// newOptions returns the options with defaults for what opts do not set. It panics if the policy is
// invalid.
func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	var o options[Rsp]
	option.Apply(&o, opts)
	if o.complete == nil && layer.HasBody[Rsp]() {
		o.complete = layer.AtEnd[Rsp]()
	}
	if err := o.policy.Validate(); err != nil {
		panic(err.Error())
	}
	o.policy = o.policy.orDefault()
	o.instruments = o.instruments.orDiscard()
	return o
}

// WithPolicy sets the balancer's policy. [New] panics if the policy is invalid.
func WithPolicy[Rsp any](p Policy) Option[Rsp] {
	return func(o *options[Rsp]) { o.policy = p }
}

// WithCompletion determines when a response ends. The response is in flight until then. The
// default is [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return func(o *options[Rsp]) { o.complete = c }
}

// WithRand sets the source of random numbers, for reproducible simulations. It must be safe for
// concurrent use. By default, math/rand/v2 generates them.
func WithRand[Rsp any](random func() uint64) Option[Rsp] {
	return func(o *options[Rsp]) { o.random = random }
}

// WithMetrics sets the metrics that the balancer writes. By default it writes none.
func WithMetrics[Rsp any](instruments Instruments) Option[Rsp] {
	return func(o *options[Rsp]) { o.instruments = instruments }
}
