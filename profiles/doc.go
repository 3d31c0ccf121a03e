// Package profiles routes the requests of one destination by its profile: a list of
// routes, a split over several targets, and classes that define failed responses. A
// profile comes from a [Source] and may change at any time.
//
//	request ─→ Router ─ first route that matches ─→ per-route stack ─→ split ─┬─→ mk("web-v1:80")
//	             ↑       (adds its labels)         (see WithRouteLayers)   (weight) └─→ mk("web-v2:80")
//	          Profile
//	             ↑
//	     Source.Watch(target)
//
// A [Router] is a [layer.Service]. It loads the compiled profile once per request, so
// a request sees one profile from its start to its end. A [layer.MakeService] makes
// the service of a target, usually a balancer.
//
// The behaviour is that of linkerd's service profiles. An invalid piece of a profile,
// such as a regular expression that does not parse, is left out and the rest is used.
// Validate returns the invalid pieces.
//
// [WithRouteLayers] applies the retries, timeouts and limits of a route with layers of
// package layer; [WithPerRoute] is for other stacks. All retries and hedges of a
// profile share its [RetryBudget]. A route or budget that is equal in the next profile
// keeps its state.
//
// A [Router] serves requests. A server of connections calls [Profile.Dispatch] first,
// which says whether to detect HTTP and where the connection goes. A Router over
// connections (layer/tcplayer) chooses a target once per connection.
//
// A panic of a callback on the Router's goroutine does not end the process: the part of
// the profile that it was called for is left out. After a panic of the Source the last
// profile stays in force.
package profiles
