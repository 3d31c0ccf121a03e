// Package layertest tests whether a service or a layer keeps the contract of package layer:
//
//	Run       checks the invariants of the contract
//	Mock      is a service with a capacity that the test sets
//	Network   is a net.Listener and a dialer in memory
//
// All of them work in a testing/synctest bubble. Time passes there only when all goroutines wait,
// so that "rejects without waiting" and "leaks no goroutine" are exact.
//
// # Run
//
// The layer under test, called the subject, is placed on an inner service that the checks
// control:
//
//	checks ── Ready, Call ──▶ layer under test ──▶ inner service
//	  ▲                                                  │
//	  └── requests, contexts, number of calls ───────────┘
//
// You can test a layer with a few lines:
//
//	func TestLimitConforms(t *testing.T) {
//		layertest.Run(t, layertest.Layer{
//			Layer: layer.Limit[*layertest.Request, *layertest.Response](8),
//			Limit: 8,
//		})
//	}
//
// A [LayerOf] is a layer for one protocol's messages. A [Service] or [ServiceOf] is a service
// without an inner service. If it is always ready, like a router, leave Fill unset.
//
// These are the invariants:
//
//	 1  Ready looks at capacity before ctx, so that Poll works
//	 2  a thousand goroutines: every call is served once and gets its own response
//	 3  Ready reserves nothing and makes no calls
//	 4  capacity wakes every waiting Ready, and later ones return at once
//	 5  when ctx ends, Ready and Call return its cause at once, and leak nothing
//	 6  a ctx that has ended: a rejection with its cause, without a call of inner
//	 7  saturation: a rejection without waiting; a queue keeps its declared bounds
//	 8  the calls in flight never exceed the limit, and all capacity comes back after
//	    errors, panics, Goexit, cancellations and abandoned bodies
//	 9  waiting calls are served first in, first out
//	10  a canceled waiter takes no capacity from another
//	11  the number of wake-ups and of inner calls is linear in the number of calls
//	12  after a close, Ready and Call return ErrClosed to waiting and to later callers
//	13  a response is counted once, at its declared end; the inner ctx lives until the
//	    body is closed, and ends with the caller's
//	14  attempts are limited, and end with ctx; all responses but one are closed
//	15  errors pass errors.Is and errors.As and are not rejections; panics pass
//	16  the inner deadline is never later than the caller's; time in a queue counts
//	17  a transparent layer changes and allocates nothing
//	18  applying the layer starts no goroutine and calls nothing
//
// A rejected request must be unchanged: its fields are the same, and its body is neither read nor
// closed.
package layertest
