// Package profiles sends the requests of one service along routes that change while requests run.
//
// Not all requests to a service are alike: a search may take two seconds and a health check must not, a
// GET may be retried and an order must not, and a new version should get a tenth of the traffic before it
// gets all of it. If these rules are code, each change is a release. With this package they are a
// [Profile]: a list of routes with timeouts, retries and classes of failures, and a split over several
// targets. A profile comes from a [Source], such as a file (profiles/file), linkerd (profiles/linkerd) or
// your own program, and a change takes effect with the next request:
//
//	web := profiles.New(ctx, profiles.Config{Target: "web.default:80", Source: source},
//		httplayer.HTTP{}, balanced, profiles.WithRouteLayers(httplayer.HTTP{}))
//	rsp, err := web.Call(ctx, req)
//
// Here balanced is a function that makes the service for a target, usually a balancer with a queue:
//
//	request ─→ Router ─ first route that matches ─→ per-route stack ─→ split ─┬─→ mk("web-v1:80")
//	             ↑       (adds its labels)         (see WithRouteLayers)   (weight) └─→ mk("web-v2:80")
//	          Profile
//	             ↑
//	     Source.Watch(target)
//
// The page guides/routes.md shows from where profiles come, and the layers that a route becomes.
//
// For an http.Client, use httpclient.WithProfiles, which makes the Router and the balancers. You do not
// need the package if one service without such rules is enough (use httpclient), or if routes are fixed
// when you build the program (use [layer.Router] or a mux).
//
// A [Router] is a [layer.Service]. It loads the compiled profile once per request, so a request sees a
// single profile from start to end. That costs one match: the routes are compiled when a profile arrives.
//
// It behaves like linkerd's service profiles. An invalid part of a profile, such as a regular expression
// that does not parse, is left out and the rest takes effect. [Profile.Validate] reports such parts.
//
// A [Router] serves requests. A server of connections calls [Profile.Dispatch] first, to find out whether
// to detect HTTP and where the connection goes. A Router over connections (layer/tcplayer) chooses a
// target once per connection.
//
// # Splits
//
// A split's target, and a route's backend, is a key of any form, on which [New]'s mk and the Source
// agree. Only linkerd's sources require DNS names with a port. By default, a target keeps its share of
// the requests even while it is down: half of the requests fail if one side of a 50:50 split is down.
// [Distribution] selects other rules, such as linkerd's.
//
// # Panics
//
// A panicking callback on the Router's goroutine does not end the process. Whatever part of the profile
// it was called for is left out. If the Source panics, the last profile stays current.
//
// # Client policies
//
// A route may bring its own Backends, like routes in the Gateway API. For such routes, [Profile].Precedence
// is [MostSpecific]. Package profiles/linkerd gets such profiles from linkerd's policy controller.
//
// # Retries
//
// [WithRouteLayers] applies a route's retries, timeouts and limits with layers from package layer;
// [WithPerRoute] is for other stacks. All retries and hedges in a profile share its [RetryBudget]. A
// route that is equal in the next profile keeps its state, unless the RetryBudget changed.
//
// An attempt is retried if it exceeded AttemptTimeout, if its response is a failure by the route's
// classes, or if its error is [layer.Retryable]; see [Retry]. Each attempt draws a target again. Attempts
// follow without a pause by default, even if a response carries a Retry-After. The budget, the timeouts of
// the request and Max limit how often a request is retried. After the last retry the last response is
// returned. Rejections, for example by a full queue, are not retried. An endpoint without a balancer should
// return failed connections as errors, like httplayer.SingleEndpoint.
//
// A request body is kept up to MaxBodyBytes. A request with a larger body is sent once. If the trailers decide,
// as in gRPC, the response is held back until the first piece of its body arrives. The response is
// classified with its trailers if these arrived with that piece: see Peek of [layer.Protocol]. Otherwise
// the headers decide on a retry, and later trailers are only counted. linkerd does not retry a request if
// its body is still being sent. A Router does, up to MaxBodyBytes.
package profiles
