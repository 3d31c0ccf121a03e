// Package balance spreads requests over the endpoints of a target: of two
// that are ready, chosen at random, the cheaper one gets the request.
//
//	 changes (discover)                     Call
//	       │                                  │
//	       ▼                                  ▼
//	┌─ unready ─┐   Ready returns nil   ┌── ready ──┐
//	│ ○ ○       │ ────────────────────▶ │ ● ● ● ● ● │  two at random,
//	│ one       │ ◀──────────────────── │           │  the cheaper one
//	│ goroutine │     Call refused      └───────────┘
//	│ each      │
//	└───────────┘
//
// What an endpoint costs is its expected latency times the number of requests
// that would then be in flight there. The expected latency is a peak EWMA: it
// jumps to a latency that is worse at once, comes down slowly as better ones
// come in, and counts for less the older it is, so that an endpoint that was
// slow is tried again. Looking at it never changes it.
//
// A [Balancer] refuses, and never waits: put a layer.Queue above it to wait.
// An endpoint that refuses a request is taken out of the ready set until its
// Ready returns, and the request is offered to others; it was not touched, so
// that this costs no retry budget.
//
// A request that is sent again, as a retry or a hedge, goes to an endpoint
// where it has not been: layer.Retry and layer.Hedge say so in its context.
//
// Statistics follow identity: as long as an endpoint's resolve.ID stays, its
// estimate and its in-flight count stay, whatever updates come in.
//
// # Defaults
//
//	endpoints looked at for each request  2      [Choices]
//	latency expected of a new endpoint    30 ms  [DefaultRTT]
//	time in which an estimate fades to e⁻¹ 10 s   [Decay]
//	refusals before a Call gives up       5
//	latency that a failure counts as      5 s    [Penalty], with [Classify]
//
// # When a response counts
//
// The latency of a response is the time to the first byte of its body, or to
// its end if that comes first; it counts as in flight until its end (see
// [Until]). An error counts like a response, so an endpoint that fails fast
// looks fast, unless [Classify] says what a failure is: then it counts as slow.
// Put a breaker into the endpoint's stack as well, which stops what a penalty
// only makes rare. A caller that goes away, or whose time is over, says only
// that the response would have taken at least as long as it waited.
package balance
