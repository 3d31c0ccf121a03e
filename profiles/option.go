package profiles

import (
	"log/slog"
	"time"

	"github.com/gotower/gotower/layer"
)

// Option sets up a [Router].
type Option[Req, Rsp any] interface {
	apply(o *options[Req, Rsp])
}

type options[Req, Rsp any] struct {
	initialWait time.Duration
	perRoute    func(Route, layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	unrouted    func(layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	onProfile   func(*Profile)
	forward     layer.MakeService[*Endpoint, Req, Rsp]
	standard    *standard[Req, Rsp] // nil: routes do not act
	measured    func(Route) (requests, tries layer.Instruments)
	onResponse  func(*layer.Route, layer.Class, error)
	log         *slog.Logger
}

type optionFunc[Req, Rsp any] func(*options[Req, Rsp])

func (f optionFunc[Req, Rsp]) apply(o *options[Req, Rsp]) { f(o) }

// WithInitialWait lets requests wait for the first profile, but not beyond d after
// the Router was made; then the default profile serves until the real one
// comes. The default, and the meaning of d <= 0, is not to wait.
//
// This is the one wait in a Router, and breaks the rule that only a queue
// waits: a request that is sent by the default profile while the real one is
// on its way may reach a target that it must not reach.
func WithInitialWait[Req, Rsp any](d time.Duration) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.initialWait = d })
}

// WithPerRoute puts a stack of its own between each route and its targets, for what
// [WithRouteLayers] does not do. stack is asked once for each route; the result serves
// for as long as profiles have that same route (but see [WithOnUpdate]). It may return next, and must
// return at once. The default route has no stack; see [WithDefaultRoute].
//
// With WithRouteLayers, next is what that makes of the route. Each Call of it draws a
// target anew, from the profile that was in force when the request came. For
// that the profile travels in the context: call next with the context that the
// stack was called with, or one made from it.
func WithPerRoute[Req, Rsp any](stack func(route Route, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.perRoute = stack })
}

// WithDefaultRoute puts a stack of its own between the requests that match no route and
// their targets. stack is asked anew for each profile, and must return at once.
func WithDefaultRoute[Req, Rsp any](stack func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.unrouted = stack })
}

// WithOnUpdate has told called with each profile that is about to be in force, the
// default one included, before [WithPerRoute], [WithDefaultRoute] and [WithMetrics] are asked for
// what it needs: for those who count by names that the profile says, and have to
// know which routes are over. It is called for one profile at a time, and must
// return at once.
//
// A Router with this option makes all routes anew when the profile's Name changes,
// also those that [WithPerRoute], [WithOnResponse] and [WithMetrics] otherwise keep: what a
// stack has in flight, or has counted for a limit or a rate, stays with the old one.
func WithOnUpdate[Req, Rsp any](told func(p *Profile)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.onProfile = told })
}

// Join is all of opts as one.
func Join[Req, Rsp any](opts ...Option[Req, Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) {
		for _, opt := range opts {
			if opt != nil {
				opt.apply(o)
			}
		}
	})
}

// WithOnResponse has report called once for each request when it is over: when its
// response has ended, as the Access's Complete says, or when it failed without
// one. route is nil for the default route, and a route without name and
// labels; the same route has the same pointer for as long as profiles have it,
// so that what is looked up for its labels can be kept. err is what broke the
// request or its response off, if something did.
//
// A response that was broken off is a failure. One that the caller did not
// want to the end (the body closed early, the context cancelled) is judged by
// what had come of it. Nothing is reported for a request that was refused, as
// it may still be served elsewhere, nor for one whose caller left before there
// was a response. One whose time ran out while it waited is a failure.
//
// report must be quick and safe for concurrent use.
func WithOnResponse[Req, Rsp any](report func(route *layer.Route, class layer.Class, err error)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.onResponse = report })
}

// WithLogger has the Router log to l: profiles that come (as Debug), pieces left out
// of them, and errors of the source. The default is to be silent.
func WithLogger[Req, Rsp any](l *slog.Logger) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.log = l })
}
