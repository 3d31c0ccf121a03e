package balance

import (
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Config configures a [Balancer], apart from what depends on the type of its responses; see [Option].
type Config struct {
	// Target is the name that errors, events and descriptions show. [Resolve] resolves it.
	Target string

	// Policy is the balancer's policy. [New] panics if it is invalid.
	Policy Policy

	// FailFast makes the balancer fail as soon as it is certain that it cannot serve a request: every
	// endpoint has failed, or the target does not exist or cannot be resolved. An endpoint has failed if
	// it cannot be reached, its breaker is open, or it is ejected. The rejection then matches
	// [layer.ErrFailFast], and so does the error of Ready, so that no request waits in a [layer.Queue].
	//
	// Requests still wait there until the target is resolved for the first time, while it has no
	// endpoints, and while an endpoint is busy. By default, they also wait for failed endpoints.
	FailFast bool

	// Metrics holds the metrics that the balancer writes. By default it writes none.
	Metrics Instruments

	// OnEvent is called for each [Event]. It is called by one goroutine at a time, in the order of the
	// events, which runs only while events wait. If it is slow, up to 1000 events wait, and further ones
	// are dropped. If it panics, the next event follows. It may be nil.
	OnEvent func(Event)

	// Rand is the source of random numbers, for reproducible simulations. It must be safe for
	// concurrent use. By default, math/rand/v2 generates them.
	Rand func() uint64
}

// Option sets a property of a [Balancer] that depends on the type of its responses.
type Option[Rsp any] func(*options[Rsp])

// options is the [Config] and what the [Option] values set.
type options[Rsp any] struct {
	Config

	complete layer.Completion[Rsp] // nil if a response ends when Call returns
	classify layer.Classifier[Rsp] // nil means the classifier of the endpoints
}

// newOptions returns the options with defaults for what cfg and opts do not set. It panics if the policy
// is invalid.
func newOptions[Rsp any](cfg Config, opts []Option[Rsp]) options[Rsp] {
	o := options[Rsp]{Config: cfg}
	option.Apply(&o, opts)
	// Only for a response with a body: others end when they are returned.
	if o.complete == nil && layer.HasBody[Rsp]() {
		o.complete = layer.AtEnd[Rsp]()
	}
	if err := o.Policy.Validate(); err != nil {
		panic(err.Error())
	}
	o.Policy = o.Policy.orDefault()
	o.Metrics = o.Metrics.orDiscard()
	return o
}

// WithCompletion determines when a response ends. The response is in flight until then. The
// default is [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return func(o *options[Rsp]) { o.complete = c }
}
