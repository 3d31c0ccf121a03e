// Package balance spreads requests over the endpoints of a target. The cheapest
// ready endpoint gets the request.
//
//	 changes (discover)                     Call
//	       │                                  │
//	       ▼                                  ▼
//	┌─ unready ─┐   Ready returns nil   ┌── ready ──┐
//	│ ○ ○       │ ────────────────────▶ │ ● ● ● ● ● │  looks at all of sixteen,
//	│ one       │ ◀──────────────────── │           │  or at five of more:
//	│ goroutine │     Call rejected     └───────────┘  the cheapest one
//	│ each      │                         │       ▲
//	└───────────┘             fails more  ▼       │  after a while
//	                          than others ejected ┘
//
// The cost of an endpoint is its expected latency times the number of requests it
// would then have in flight, divided by its weight. The expected latency is a peak
// EWMA: it rises at once, falls slowly, and ages towards the median of all
// endpoints, so that a slow endpoint is tried again. Reading it never changes it.
// An endpoint without samples costs the median. It gets one request, then two, four
// and eight at a time, until its latency is known.
//
// [Policy] sets the pick, the cost, weights, slow start, zones and outlier
// detection. SIMULATION.md compares the default with other balancers; go generate
// ./balance/simulation writes it.
//
// A [Balancer] rejects and never waits: place a layer.Queue above it. An endpoint
// that rejects a request leaves the ready set until its Ready returns, and the
// request goes to another endpoint without charge to a retry budget. A
// layer.Breaker in the endpoint's stack works by the same rule, unless fewer than
// MinReady of [OutlierDetection] would be left.
//
// A retry or hedge goes to an endpoint that the request has not tried, because
// layer.Retry and layer.Hedge record the endpoints in its context. Requests with
// the same layer.WithAffinity go to the same endpoint with [ConsistentHash].
//
// An endpoint keeps its statistics as long as its resolve.ID stays the same.
//
// # When a response counts
//
// The latency of a response is the time to the first byte of its body, or to its
// end if that comes first ([Policy].Sample). It is in flight until its end
// ([WithCompletion]). A failure counts as slow, and from the second in a row the
// endpoint counts as busy too. The classifier of the endpoints decides about
// failures, or [WithClassifier] in its place. A canceled request only shows that
// the latency is at least the time it waited. The third consecutive missed
// deadline is a failure, and so is each after it: see [OutlierDetection].
//
// Connections are balanced like requests. For a service that returns a net.Conn,
// use SampleHeaders for the latency of connects. Use WithCompletion with
// layer.AtReturn to count connects, or with tcplayer.UntilClosed to count open
// connections.
//
// # Panics
//
// A panic of user code on a goroutine of the balancer does not end the process. A
// Ready that panics means not ready and is repeated after a pause. After a panic of
// the sequence of changes the last set stays, and [Balancer.Describe] shows
// the error. Classifiers, [WithCompletion] and [CostOf] run on the
// goroutine of the caller, or the one that ends the response, and panic there.
//
// # Observing a balancer
//
// [Balancer.Describe] and [Balancer.Snapshot] show every endpoint with its state.
// [WithMetrics] writes metrics. layer.Explain records for one request the examined
// endpoints, their costs, and why others were not ready.
package balance
