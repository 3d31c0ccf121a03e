// Package layertest proves that a service or a layer keeps the contract of
// package layer. It has three tools:
//
//	Run       runs the invariants of the contract against a layer or service
//	Mock      is a service with a capacity that the test sets
//	Network   is a net.Listener and a dialer in memory
//
// All of them are made for testing/synctest: in a bubble, time passes only when
// all goroutines wait, so that "rejects without waiting", "returns at the
// deadline" and "leaves no goroutine behind" are facts.
//
// # Run
//
// The layer under test is placed on an inner service that the checks control:
//
//	checks ── Ready, Call ──▶ layer under test ──▶ inner service
//	  ▲                                                  │
//	  └── requests, contexts, number of calls ───────────┘
//
// The test of a layer for any requests is a few lines:
//
//	func TestLimitConforms(t *testing.T) {
//		layertest.Run(t, layertest.Layer{
//			Layer: layer.Limit[*layertest.Request, *layertest.Response](8),
//			Limit: 8,
//		})
//	}
//
// A layer for one protocol supplies its messages in a [LayerOf]. A service that
// stands alone goes into a [Service] or [ServiceOf]. A service that is always
// ready, such as a router, is a service without Fill.
//
// These are the invariants. 0 is the rule of design.md §2 for Ready; the others
// have the numbers of readiness.md §7. 21 and 22 belong to balancers and
// clocks.
//
//	 0  Ready looks at capacity before ctx; Poll tells ready from not ready
//	 1  a thousand goroutines: every call is served once and gets its own response
//	 2  Ready reserves nothing and makes no calls
//	 3  capacity wakes every waiting Ready, and later ones return at once
//	 4  when ctx ends, Ready and Call return its cause at once, and leave nothing
//	 5  a ctx that has ended: a rejection with its cause, without a call of inner
//	 6  saturation: a rejection without waiting; a queue keeps its declared bounds
//	 7  a rejection leaves the request untouched: fields, and body neither read nor closed
//	 8  never more in flight than the limit
//	 9  all capacity is back after errors, panics, Goexit, cancels, abandoned bodies
//	10  first in, first out
//	11  a canceled waiter, even at its turn, takes no turn from another
//	12  wake-ups and calls of the inner service are linear in calls
//	13  closed is final, for Ready and Call, for waiting and later callers
//	14  a response is accounted for once, at its declared end
//	15  the inner ctx lives until the body is closed, and ends with the caller's
//	16  attempts: at most as declared, none after ctx; all but one are closed
//	17  errors pass errors.Is and errors.As, none becomes a rejection; panics pass
//	18  the inner deadline is never later than the caller's; time in a queue counts
//	19  Ready is forwarded; a transparent layer changes and allocates nothing
//	20  making it starts no goroutine and calls nothing
package layertest
