package profiles

import (
	"log/slog"
	"time"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Option configures a [Router].
type Option[Req, Rsp any] func(*options[Req, Rsp])

type options[Req, Rsp any] struct {
	initialWait  time.Duration
	perRoute     func(Route, layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	defaultRoute func(layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	onUpdate     func(*Profile)
	forward      layer.MakeService[*Endpoint, Req, Rsp]
	backends     layer.MakeService[*Backend, Req, Rsp]
	layers       *routeLayers[Req, Rsp]                             // nil without WithRouteLayers
	metrics      func(Route) (requests, attempts layer.Instruments) // see WithMetrics
	log          *slog.Logger
}

// WithInitialWait makes requests wait for the first profile. The wait ends at the latest when d has
// passed since the call of [New]. After that the default profile is used until the first profile
// arrives. Without this option requests do not wait, and may reach a target that the first profile
// excludes.
//
// The Router itself delays requests only for the first profile. The services that the function mk
// of [New] returns may wait, for example in a queue.
func WithInitialWait[Req, Rsp any](d time.Duration) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.initialWait = d }
}

// WithPerRoute sends the requests of each route to the service that the function stack returns.
// The service next, which stack receives, sends them to the targets of the route. stack is called
// once for each route and must return at once. It may return next or nil, which means next. If the
// route, the RetryBudget and the labels of the Policy are equal in the next profile, the route
// keeps the service. See also [WithOnUpdate]. [WithDefaultRoute] does the same for requests that
// match no route.
//
// With [WithRouteLayers], next includes the layers of the route. Each Call of next chooses a
// target from the profile that was current when the request arrived. next finds that profile in
// its context. Therefore call next with the context of the call, or with one derived from it.
func WithPerRoute[Req, Rsp any](stack func(route Route, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.perRoute = stack }
}

// WithDefaultRoute sends the requests that match no route to the service that the function stack
// returns. The service next, which stack receives, sends them to their targets. stack is called
// once for each profile and must return at once.
func WithDefaultRoute[Req, Rsp any](stack func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.defaultRoute = stack }
}

// WithOnUpdate calls f with each profile before the profile takes effect. This includes the
// default profile. f is called before the functions of [WithPerRoute], [WithDefaultRoute] and
// [WithMetrics], so that it can remove the metrics of routes that no longer exist. Calls of f are
// not concurrent. f must return at once.
//
// With this option, all routes are built again when the profile's Name changes. The new
// routes start with new limits and rates. Requests in flight keep the old routes.
func WithOnUpdate[Req, Rsp any](f func(p *Profile)) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.onUpdate = f }
}

// Join returns an option that applies all of opts.
func Join[Req, Rsp any](opts ...Option[Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { option.Apply(o, opts) }
}

// WithLogger logs to l: new profiles (Debug), invalid parts that are left out, and
// errors of the source. By default nothing is logged.
func WithLogger[Req, Rsp any](l *slog.Logger) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.log = l }
}
