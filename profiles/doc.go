// Package profiles routes the requests of one destination by its profile: a
// list of routes, a split over several targets, and classes that say which
// responses are failures. A profile comes from a [Source], and may change at
// any time while requests flow.
//
//	request ─→ Router ─ first route that matches ─→ per-route stack ─→ split ─┬─→ mk("web-v1:80")
//	             ↑       (its labels go along)       (see WithRouteLayers)   (weight) └─→ mk("web-v2:80")
//	          Profile
//	             ↑
//	     Source.Watch(target)
//
// A [Router] is an ordinary [layer.Service]. It loads the compiled profile
// once for each request, so that a request sees one profile from its start to
// its end, and requests in flight are not disturbed by a new one. What lies
// below a target is made by a [layer.MakeService]: usually a balancer, which this
// package does not know.
//
// The behaviour is that of linkerd's service profiles. Where a profile has a
// bad piece (a regular expression that does not parse, a status that does not
// exist), that piece is left out and the rest holds; Validate says which
// pieces those are.
//
// What a route says of retries, time and load acts through [WithRouteLayers], by the
// layers of package layer; [WithPerRoute] is for stacks of one's own. All retries
// and hedges of a profile are taken from its one [RetryBudget]. A route, and a
// budget, that a new profile has as the old one had it keeps its state.
//
// A [Router] serves requests. Whoever serves connections asks [Profile.Dispatch]
// first: whether they may be looked into, and where they go. A Router over
// connections (layer/tcplayer) draws a split once for each of them.
package profiles
