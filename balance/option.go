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
	choices  int
	rtt      time.Duration
	decay    time.Duration
	complete layer.Completion[Rsp] // nil if a response is over when Call returns
	failures failures[Rsp]
}

const maxChoices = 16

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	o := options[Rsp]{choices: 2, rtt: 30 * time.Millisecond, decay: 10 * time.Second}
	o.failures.penalty = 5 * time.Second
	if layer.HasBody[Rsp]() {
		o.complete = layer.AtEnd[Rsp]()
	}
	for _, opt := range opts {
		opt.apply(&o)
	}
	return o
}

type optionFunc[Rsp any] func(*options[Rsp])

func (f optionFunc[Rsp]) apply(o *options[Rsp]) { f(o) }

// Choices is how many endpoints are looked at for each request, from 2, the
// default, to 16; what is below or above is taken as that. More choices find
// the cheapest endpoint more often, and so do all other balancers of the same
// target: two are enough for most of the gain, and avoid the herd (Mitzenmacher,
// "The Power of Two Choices in Randomized Load Balancing", 2001).
func Choices[Rsp any](k int) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.choices = min(max(k, 2), maxChoices) })
}

// DefaultRTT is the latency that is expected of an endpoint before its first
// response. The default is 30 ms, the least is 1 ms. If it is far above what
// the others take, a new endpoint gets nothing until the value has faded.
func DefaultRTT[Rsp any](d time.Duration) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.rtt = max(d, time.Millisecond) })
}

// Decay is the time in which an estimate fades to 1/e of its value, and the
// time constant of the moving average. The default is 10 s, the least is 1 ms.
func Decay[Rsp any](d time.Duration) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.decay = max(d, time.Millisecond) })
}

// Until says where a response ends: until then it counts as in flight. The
// default is [layer.AtEnd].
func Until[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}
