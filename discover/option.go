package discover

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// Option sets how [Endpoints] works.
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	complete layer.Completion[Rsp]
	overlap  time.Duration
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	o := options[Rsp]{overlap: 10 * time.Second}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.complete == nil {
		o.complete = layer.AtEnd[Rsp]()
	}
	return o
}

type optionFunc[Rsp any] func(*options[Rsp])

func (f optionFunc[Rsp]) apply(o *options[Rsp]) { f(o) }

// WithCompletion says where a response ends: until then it counts as open, and what
// serves it is not let go. The default is [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}

// WithHandoverTimeout is how long an endpoint may serve on whose [resolve.ID] changed while
// its address stayed. The default is 10 s; 0 or less means not at all.
//
// It leaves when the service of the new ID is ready, or has closed, or when the
// time is over, counted from the update that changed the ID. Then the new one
// takes its place, ready or not, because it is what the resolver says there is:
// that it is not ready is seen and may be acted upon, while an endpoint that
// serves on against the resolver's word is not seen. A service that is not even
// made by then is added later.
//
// If the ID changes again meanwhile, the newest is waited for, no longer than
// until that same time. If it changes back, the endpoint stays as if nothing
// had been. The labels and the weight of the new one are told when it takes its
// place. An address that goes, goes at once.
//
// What an ID says may be a matter of trust. After a change of ServerName or
// Identity the old service goes on, for the time of the overlap at most, to use
// connections that were verified for the old name, or that were cleartext, and
// to make such connections. linkerd's proxy does so too, and without a limit.
// The old name was good enough a moment before, and whoever has taken over the
// address cannot prove to be it; but if a name that was withdrawn must be out
// of use at once, set 0.
func WithHandoverTimeout[Rsp any](d time.Duration) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.overlap = d })
}
