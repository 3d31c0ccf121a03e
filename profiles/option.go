package profiles

import (
	"context"
	"log/slog"
	"time"

	"github.com/gotower/gotower/layer"
)

// Config says which profile a [Router] follows. Target and Source are required.
type Config struct {
	// Target is the name by which Source knows the profile. Requests go to Target until the first
	// profile arrives.
	Target string
	Source Source

	// InitialWait is how long after [New] requests wait for the first profile. After that the default
	// profile is used until the first profile arrives. If InitialWait is 0, requests do not wait, and may
	// reach a target that the first profile excludes.
	//
	// The Router itself delays requests only for the first profile. The services from [New]'s mk may
	// wait, for example in a queue.
	InitialWait time.Duration

	// RetryByClass makes routes without ResponseClasses retry the responses that [WithRouteLayers]'s Protocol
	// counts as [layer.Retryable], which for httplayer.Classify are 502, 503, 504 and UNAVAILABLE, and 425.
	// Without it they retry all failures, as linkerd does: each 5xx except 501, and 425. 429 is never retried.
	RetryByClass bool

	// Metrics returns the instruments for the layers of [WithRouteLayers]: those for a route's requests,
	// and those for their attempts. It is called once for each route. If the next profile contains an
	// equal route, the route keeps its instruments. If a service below the layers rejects a request, it
	// is counted only in Rejections. nil means no instruments.
	Metrics func(route Route) (requests, attempts layer.Instruments)

	// LazyRoutes makes a route's layers and instruments for the first request of the route, instead of
	// when a profile brings the route. Use it for profiles with thousands of routes that are rarely used.
	// Routes without requests then have no metrics, and Metrics must be safe for concurrent use.
	LazyRoutes bool

	// OnUpdate is called with each profile before the profile takes effect. This includes the default
	// profile. It is called before Metrics and the functions given to [WithPerRoute] and
	// [WithDefaultRoute], so that it can remove the metrics for routes that no longer exist. Its calls
	// are not concurrent. It must return at once.
	OnUpdate func(p *Profile)

	// Log receives new profiles (Debug), invalid parts that are left out, and errors of the source. nil
	// means no log.
	Log *slog.Logger
}

// Option configures a [Router] with what depends on the types of its requests and responses.
type Option[Req, Rsp any] func(*options[Req, Rsp])

// options holds what the Options have set. All fields may be nil.
type options[Req, Rsp any] struct {
	perRoute     func(Route, layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	defaultRoute func(*Profile, layer.Service[Req, Rsp]) layer.Service[Req, Rsp]
	backends     func(context.Context, *Backend) layer.Service[Req, Rsp]
	protocol     Protocol[Req, Rsp] // nil without WithRouteLayers
}

// WithPerRoute sends each route's requests to the service that stack returns. With it, you can add
// layers of your own to a route, for example a limit that depends on its labels. The service next,
// which stack receives, sends the requests to the route's targets.
//
// stack is called once for each route when a profile arrives, before the profile takes effect, and
// must return at once. It may return next or nil, which means next. If the route, the RetryBudget and
// the Policy's labels are equal in the next profile, the route keeps its service.
// See also [Config.OnUpdate]. [WithDefaultRoute] does the same for requests that match no route.
//
// With [WithRouteLayers], next includes the route's layers. Each Call of next chooses a target
// from the profile that was current when the request arrived, which next finds in its context.
// You must therefore call next with the call context, or with one derived from it.
func WithPerRoute[Req, Rsp any](stack func(route Route, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.perRoute = stack }
}

// WithDefaultRoute sends the requests that match no route to the service that the function stack
// returns. The service next, which stack receives, sends them to the targets of the profile p. stack
// is called once for each profile and must return at once.
func WithDefaultRoute[Req, Rsp any](stack func(p *Profile, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.defaultRoute = stack }
}
