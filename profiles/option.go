package profiles

import (
	"log/slog"
	"time"

	"github.com/gotower/gotower/layer"
)

// Option configures a [Router].
type Option[Req, Rsp any] interface {
	apply(o *options[Req, Rsp])
}

type options[Req, Rsp any] struct {
	initialWait  time.Duration
	perRoute     func(Route, layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	defaultRoute func(layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	onUpdate     func(*Profile)
	forward      layer.MakeService[*Endpoint, Req, Rsp]
	layers       *routeLayers[Req, Rsp] // nil without WithRouteLayers
	metrics      func(Route) (requests, attempts layer.Instruments)
	onResponse   func(*layer.Route, layer.Class, error)
	log          *slog.Logger
}

type optionFunc[Req, Rsp any] func(*options[Req, Rsp])

func (f optionFunc[Req, Rsp]) apply(o *options[Req, Rsp]) { f(o) }

// WithInitialWait makes requests wait for the first profile, until d after New. Then
// the default profile serves until the first one arrives. The default is not to
// wait.
//
// This is the only wait in a Router, against the rule that only a queue waits. With
// the default profile a request may reach a target that the profile excludes.
func WithInitialWait[Req, Rsp any](d time.Duration) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.initialWait = d })
}

// WithPerRoute puts the result of stack between each route and its targets. stack is
// called once for each route, may return next, and must return at once. The result
// is used while profiles have the same route and RetryBudget; see also
// [WithOnUpdate]. [WithDefaultRoute] is the same for the default route.
//
// With [WithRouteLayers] next is the stack of the route. Each Call of next draws a
// target from the profile that was current when the request arrived. That profile
// is in the context: call next with the context of the call or one derived from it.
func WithPerRoute[Req, Rsp any](stack func(route Route, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.perRoute = stack })
}

// WithDefaultRoute puts the result of stack between the requests that match no route
// and their targets. stack is called for each profile and must return at once.
func WithDefaultRoute[Req, Rsp any](stack func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.defaultRoute = stack })
}

// WithOnUpdate calls f with each profile, the default one included, before it takes
// effect and before [WithPerRoute], [WithDefaultRoute] and [WithMetrics] are called
// for it. Use it to drop metrics of routes that no longer exist. Calls are
// sequential; f must return at once.
//
// With this option all routes are made again when the profile's Name changes. They
// start with new limits and rates; requests in flight stay in the old ones.
func WithOnUpdate[Req, Rsp any](f func(p *Profile)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.onUpdate = f })
}

// Join returns all of opts as one option.
func Join[Req, Rsp any](opts ...Option[Req, Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) {
		for _, opt := range opts {
			if opt != nil {
				opt.apply(o)
			}
		}
	})
}

// WithOnResponse calls report once for each request that ended: at the end of its
// response, as Complete of the Accessor defines it, or with its error. route is nil
// for the default route and for routes without name and labels. The same route has
// the same pointer, so that data for its labels can be kept. err is the error that
// ended the request or its response.
//
// A response that was aborted is a failure. One that the caller ended (the body
// closed early, the context canceled) has the class of the received part. Rejected
// requests are not reported, because they may be served elsewhere. Requests canceled
// before a response are not reported either. A deadline that passed during a wait
// is a failure.
//
// report must be quick and safe for concurrent use.
func WithOnResponse[Req, Rsp any](report func(route *layer.Route, class layer.Class, err error)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.onResponse = report })
}

// WithLogger logs to l: new profiles (Debug), parts left out of them, and errors of
// the source. The default logs nothing.
func WithLogger[Req, Rsp any](l *slog.Logger) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.log = l })
}
