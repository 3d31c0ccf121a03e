package discover

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// Option sets how [Endpoints] and [NewCache] work.
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	complete layer.Completion[Rsp]
	idle     time.Duration
	capacity int
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	o := options[Rsp]{idle: time.Minute, capacity: 10_000}
	for _, opt := range opts {
		opt.apply(&o)
	}
	if o.complete == nil {
		o.complete = layer.AtEnd[Rsp]()
	}
	return o
}

type optionFunc[Rsp any] func(*options[Rsp])

func (f optionFunc[Rsp]) apply(o *options[Rsp]) { f(o) }

// Until says where a response ends: until then it counts as open, and what
// serves it is not let go. The default is [layer.AtEnd].
func Until[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}

// Idle is how long a [Cache] keeps a service that nobody uses. The default is
// a minute; 0 or less is ignored. [Endpoints] has no use for it.
func Idle[Rsp any](d time.Duration) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) {
		if d > 0 {
			o.idle = d
		}
	})
}

// Capacity is how many keys a [Cache] holds at most. The default is 10 000; 0
// or less is ignored. [Endpoints] has no use for it.
func Capacity[Rsp any](n int) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) {
		if n > 0 {
			o.capacity = n
		}
	})
}
