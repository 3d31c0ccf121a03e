package layer

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/option"
)

// Option sets a property that several layers of this package share. Pass options to [NewStack],
// for all layers of a stack, or to the constructor of a layer or service that is not in a stack, such as
// [NewCache]. All packages of this module ignore a nil option.
type Option[Rsp any] func(*options[Rsp])

// options is what the [Option] values of a layer set.
type options[Rsp any] struct {
	target      string
	complete    Completion[Rsp]
	bare        bool // Rsp has no body, so that a response ends when Call returns
	classify    Classifier[Rsp]
	protocol    any            // nil, or a Protocol[Req, Rsp]; asserted where Req is known
	responses   responses[Rsp] // protocol's methods for responses
	instruments Instruments
	log         *slog.Logger // nil means no warnings

	uploadTime bool // ResponseHeaderTimeout counts while the request body is sent: see WithUploadTime
	afterBody  bool // Timeout and DeadlineFromRequest count from the end of that body: see WithoutUploadTime
}

// applyOptions returns what opts set, completed by the parts of a [Protocol] that no other option
// replaces. Unlike newOptions, it leaves other fields zero.
func applyOptions[Rsp any](opts []Option[Rsp]) (o options[Rsp]) {
	option.Apply(&o, opts)
	// Without a protocol, only the given options count.
	if o.responses == nil {
		return o
	}
	// An option of its own wins over the protocol's function.
	if o.complete == nil {
		o.complete = o.responses.Complete
	}
	if o.classify == nil {
		o.classify = o.responses.Classify
	}
	return o
}

// newOptions returns the options for a layer, with defaults for what opts do not set.
func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	o := applyOptions(opts)
	if o.complete == nil {
		// If Rsp has no body, nothing follows a response, so that no completion is needed.
		o.complete, o.bare = AtEnd[Rsp](), !HasBody[Rsp]()
	}
	if o.classify == nil {
		o.classify = DefaultClassifier[Rsp]
	}
	o.instruments = o.instruments.orDiscard()
	return o
}

// WithCompletion sets the [Completion], which determines when a response ends. At that time
// layers release the request's slot, end its context and measure it. The default is [AtEnd].
func WithCompletion[Rsp any](c Completion[Rsp]) Option[Rsp] {
	check(c != nil, "WithCompletion: nil Completion")
	return func(o *options[Rsp]) { o.complete = c }
}

// WithTarget sets the name of the target, which layers show in errors and descriptions. It is for
// constructors that are called without a stack, such as [Reconnect]. In a stack, [Stack.WithTarget] does
// the same and needs no type argument.
func WithTarget[Rsp any](target string) Option[Rsp] {
	return func(o *options[Rsp]) { o.target = target }
}

// WithMetrics sets the instruments in which layers record their measurements, see [Instruments]. It is for
// constructors that are called without a stack. In a stack, [Stack.WithMetrics] does the same and needs no
// type argument.
func WithMetrics[Rsp any](i Instruments) Option[Rsp] {
	return func(o *options[Rsp]) { o.instruments = i }
}

// WithLogger sets the logger for warnings about dangerous configurations. They are logged when a layer
// is made, and not for requests. By default, none are logged.
func WithLogger[Rsp any](log *slog.Logger) Option[Rsp] {
	return func(o *options[Rsp]) { o.log = log }
}

// WithUploadTime makes [ResponseHeaderTimeout] also count the time needed to send the request
// body, like the route timeouts in linkerd's service profiles.
func WithUploadTime[Rsp any]() Option[Rsp] {
	return func(o *options[Rsp]) { o.uploadTime = true }
}

// WithoutUploadTime makes [Timeout] and [DeadlineFromRequest] count from the end of the request body,
// like the response timeouts in linkerd's policies. As in [ResponseHeaderTimeout], the limit pauses
// while an endpoint waits for more of the body. The request context then carries no deadline.
func WithoutUploadTime[Rsp any]() Option[Rsp] {
	return func(o *options[Rsp]) { o.afterBody = true }
}

// check panics with message if ok is false. Constructors use it to report invalid
// arguments.
func check(ok bool, message string) {
	if !ok {
		panic("layer: " + message)
	}
}

// checkPolicy panics if p, a layer's policy, is invalid.
func checkPolicy(p interface{ Validate() error }) {
	if err := p.Validate(); err != nil {
		panic("layer: " + err.Error())
	}
}

// checkAtLeast panics if n, the value of the argument with the given name, is below minimum or is
// NaN. The panic's message names n and minimum.
func checkAtLeast[N int | int64 | float64 | time.Duration](name string, n, minimum N) {
	if n >= minimum {
		return
	}
	panic(fmt.Sprintf("layer: %s is %v, must be at least %v", name, n, minimum))
}

// acquire adds 1 to n and returns true, unless n has reached max.
func acquire(n *atomic.Int64, max int64) bool {
	// Repeated if another request has changed n between Load and CompareAndSwap.
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

// awaitRoom is the Ready of layers with a limit. It waits until room returns true, which it calls again
// whenever freed is woken, and then until next is ready.
func awaitRoom[Req, Rsp any](ctx context.Context, freed *notify.Broadcast, room func() bool, next Service[Req, Rsp]) error {
	for {
		if err := freed.Wait(ctx, room); err != nil {
			return err
		}
		if err := next.Ready(ctx); err != nil {
			return err
		}
		// The room may have been taken while next became ready.
		if room() {
			return nil
		}
	}
}
