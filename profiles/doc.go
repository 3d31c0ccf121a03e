// Package profiles routes the requests of one destination by its profile: a list of routes,
// a split over several targets, and classes that define failed responses. A profile comes
// from a [Source] and may change at any time.
//
//	request ─→ Router ─ first route that matches ─→ per-route stack ─→ split ─┬─→ mk("web-v1:80")
//	             ↑       (adds its labels)         (see WithRouteLayers)   (weight) └─→ mk("web-v2:80")
//	          Profile
//	             ↑
//	     Source.Watch(target)
//
// A [Router] is a [layer.Service]. It loads the compiled profile once per request, so a
// request sees one profile from its start to its end. A [layer.MakeService] makes the
// service of a target, usually a balancer.
//
// The behaviour is that of linkerd's service profiles. An invalid part of a profile, such
// as a regular expression that does not parse, is left out and the rest takes effect.
// Validate returns the invalid parts.
//
// A [Router] serves requests. A server of connections calls [Profile.Dispatch] first, to
// find out whether to detect HTTP and where the connection goes. A Router over connections
// (layer/tcplayer) chooses a target once per connection.
//
// A panic of a callback on the Router's goroutine does not end the process. The part of the
// profile for which the callback was called is left out. After a panic of the Source the last
// profile stays current.
//
// # Client policies
//
// A route with a [RoutePolicy] has its own backends, timeouts and retries, as the routes of the
// Gateway API have. For such routes, [Profile].Precedence is [MostSpecific]. Package
// profiles/linkerd gets such profiles from the policy controller of linkerd.
//
// # Retries
//
// [WithRouteLayers] applies the retries, timeouts and limits of a route with layers of
// package layer; [WithPerRoute] is for other stacks. All retries and hedges of a profile
// share its [RetryBudget]. A route that is equal in the next profile keeps its state,
// unless the RetryBudget changed.
//
// An attempt is retried if it exceeded AttemptTimeout, if its response is a failure by the classes
// of the route, or if its error is [layer.Retryable]. Each attempt draws a target again. Attempts
// follow without a pause, also if a response has a Retry-After. Only the budget, Timeout and
// MaxRetries limit the number of retries, which is at most 99. After the last retry the last
// response is returned. Rejections, such as those of a full queue, are not retried. An endpoint
// without a balancer should return failed connections as errors, as httplayer.SingleEndpoint does.
//
// A request body is kept up to 64 KiB. A request with a larger body is sent once. If the
// trailers decide, as for gRPC, the response is held back until the first piece of its body
// arrives. The response is classified with its trailers if these arrived with that piece:
// see Peek of [layer.Replayer]. Otherwise the headers decide on a retry, and later trailers
// are only counted. linkerd does not retry a request if its body is still being sent. A
// Router does, up to 64 KiB.
package profiles
