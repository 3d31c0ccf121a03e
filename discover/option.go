package discover

import "github.com/gotower/gotower/layer"

// Option sets how [Endpoints] works.
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	complete layer.Completion[Rsp]
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	var o options[Rsp]
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
