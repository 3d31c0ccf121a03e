package layer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/option"
)

// Option sets a property that several layers of this package have. Pass options to
// [NewStack], for all layers of a stack, or to the constructor of one layer. All packages
// of this module ignore a nil option.
type Option[Rsp any] func(*options[Rsp])

type options[Rsp any] struct {
	target   string
	complete Completion[Rsp]
	bare     bool // responses end when Call returns, because they have no body
	classify Classifier[Rsp]
	replayer any // a Replayer[Req, Rsp]; asserted where Req is known
	to       Instruments
}

// given returns the options that opts set. All other fields of the result are zero: given does not
// replace them by their defaults.
func given[Rsp any](opts []Option[Rsp]) (o options[Rsp]) {
	option.Apply(&o, opts)
	return o
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	o := given(opts)
	if o.complete == nil {
		o.complete, o.bare = AtEnd[Rsp](), !HasBody[Rsp]()
	}
	if o.classify == nil {
		o.classify = DefaultClassifier[Rsp]
	}
	o.to = o.to.orDiscard()
	return o
}

// WithCompletion sets the [Completion], which determines when a response ends. At that time
// layers release the slot of the request, end its context and measure it. The default is
// [AtEnd].
func WithCompletion[Rsp any](c Completion[Rsp]) Option[Rsp] {
	check(c != nil, "WithCompletion: nil Completion")
	return func(o *options[Rsp]) { o.complete = c }
}

// WithTarget sets the name of the target of a stack. Layers show it in errors and
// descriptions.
func WithTarget[Rsp any](target string) Option[Rsp] {
	return func(o *options[Rsp]) { o.target = target }
}

// WithMetrics sets the instruments in which layers record their measurements, see
// [Instruments].
func WithMetrics[Rsp any](i Instruments) Option[Rsp] {
	return func(o *options[Rsp]) { o.to = i }
}

// check panics with message if ok is false. Constructors use it to report invalid
// arguments.
func check(ok bool, message string) {
	if !ok {
		panic("layer: " + message)
	}
}

// checkPolicy panics if p, the policy of a layer, is invalid.
func checkPolicy(p interface{ Validate() error }) {
	if err := p.Validate(); err != nil {
		panic("layer: " + err.Error())
	}
}

// checkAtLeast panics if n, the value of the argument with the given name, is below least or is
// NaN. The message of the panic has the name, n and least.
func checkAtLeast[N int | int64 | float64 | time.Duration](name string, n, least N) {
	if n >= least {
		return
	}
	panic(fmt.Sprintf("layer: %s is %v, must be at least %v", name, n, least))
}

func acquire(n *atomic.Int64, max int64) bool {
	for {
		old := n.Load()
		if old >= max {
			return false
		}
		if n.CompareAndSwap(old, old+1) {
			return true
		}
	}
}

// awaitRoom waits until the function room returns true and the service next is ready. It calls room
// again whenever the Broadcast freed wakes it. The method Ready of a layer with a limit calls
// awaitRoom.
func awaitRoom[Req, Rsp any](ctx context.Context, freed *notify.Broadcast, room func() bool, next Service[Req, Rsp]) error {
	for {
		if err := freed.Wait(ctx, room); err != nil {
			return err
		}
		if err := next.Ready(ctx); err != nil {
			return err
		}
		if room() {
			return nil
		}
	}
}
