// Package layertest proves that a service or a layer keeps the contract of
// package layer. Three tools do it, and each is useful alone:
//
//	Conform   runs the invariants of the contract against a layer or service
//	Mock      is a service whose capacity is what the test says
//	Network   is a net.Listener and a dialer in memory
//
// All of it is made for testing/synctest: in a bubble, time passes only when
// everybody waits, so that "refuses without waiting", "returns at the
// deadline" and "leaves no goroutine behind" are facts and not guesses.
//
// # Conform
//
// A layer is put on top of an inner service that the checks control, and they
// look at it from both sides:
//
//	checks ── Ready, Call ──▶ layer under test ──▶ inner service
//	  ▲                                                  │
//	  └── what it was asked, with which ctx, how often ──┘
//
// The test of a layer that takes any requests is a few lines:
//
//	func TestLimitConforms(t *testing.T) {
//		layertest.Run(t, layertest.Layer{
//			Layer: layer.Limit[*layertest.Request, *layertest.Response](8),
//			Limit: 8,
//		})
//	}
//
// A layer bound to a protocol brings the messages of that in a [LayerOf], a
// service that stands alone goes in a [Service] or [ServiceOf], and what
// cannot tell from outside, such as a router that is always ready, is a
// service without Fill.
//
// These are the invariants. 0 is the rule of design.md §2 for Ready; the
// others have the numbers of readiness.md §7. 21 and 22 are about balancers and
// clocks, and belong to those.
//
//	 0  Ready looks at capacity before ctx; Poll tells ready from not ready
//	 1  a thousand goroutines: every call is served once and gets its own answer
//	 2  Ready reserves nothing and makes no calls
//	 3  capacity wakes everybody who waits in Ready, and is there for who comes later
//	 4  when ctx ends, Ready and Call return its cause at once, and leave nothing
//	 5  a ctx that is done already: a refusal with its cause, and nothing inside hears of it
//	 6  saturation: a refusal without waiting; a queue takes what it declares, for as long
//	 7  a refusal leaves the request as it was: fields, and body neither read nor closed
//	 8  never more in flight than the limit, whatever happens to those that are
//	 9  all capacity is back after errors, panics, Goexit, cancels, abandoned bodies
//	10  first in, first out
//	11  who stops waiting, even as his turn comes, costs nobody else a turn
//	12  wake-ups and questions to the inner service are linear in calls
//	13  closed is for good, for Ready and Call, for those who wait and who come
//	14  a response is accounted for once, at its declared end, however the body ends
//	15  the inner ctx lives until the body is closed, and ends with the caller's
//	16  no more tries than declared, none after ctx is done; all but one are over, their bodies closed
//	17  errors pass errors.Is and errors.As, none becomes a refusal; panics pass
//	18  the inner deadline is never later than the caller's; time in a queue counts
//	19  Ready is forwarded; a transparent layer changes nothing and allocates nothing
//	20  making it starts no goroutine and asks nothing
package layertest
