// Package balance distributes requests over the endpoints of a target. The ready endpoint
// with the lowest cost gets the request.
//
//	 changes (discover)                     Call
//	       │                                  │
//	       ▼                                  ▼
//	┌─ unready ─┐   Ready returns nil   ┌── ready ──┐
//	│ ○ ○       │ ────────────────────▶ │ ● ● ● ● ● │  looks at up to 24 in
//	│ one       │ ◀──────────────────── │           │  an aperture, picks
//	│ goroutine │     Call rejected     └───────────┘  the cheapest one
//	│ each      │                         │       ▲
//	└───────────┘             fails more  ▼       │  after a while
//	                          than others ejected ┘
//
// The cost of an endpoint is its expected latency times the number of requests that it would have
// in flight, divided by its weight. A weight is the capacity of an endpoint, such as its number of
// workers. It is not its speed, because the latency already includes it. The expected latency is a
// moving average of logarithms. It ages towards the median of all endpoints, so that a slow
// endpoint is tried again. A pick does not change an expected latency. An endpoint without samples
// has the median as its expected latency. Such an endpoint gets one request, then two, four and
// eight at a time, until its latency is known.
//
// [Policy] configures the pick, the cost, slow start, zones and outlier detection.
// SIMULATION.md compares the default with other balancers.
//
// A [Balancer] rejects requests and never lets them wait: place a layer.Queue above it. An endpoint
// that rejects a request leaves the ready set until its Ready returns. The request goes to another
// endpoint and uses no retry budget. The same applies to a layer.Breaker in the endpoint's stack. If
// fewer endpoints than MinReady of [OutlierDetection] would be left, breakers are ignored for a second.
//
// A retry or hedge goes to an endpoint that the request has not tried. For this, layer.Retry
// and layer.Hedge record the tried endpoints in the context of the request. Requests with
// the same layer.WithAffinity go to the same endpoint with [ConsistentHash].
//
// An endpoint keeps its statistics as long as its resolve.ID stays the same.
//
// # Measuring a response
//
// The latency of a response is the time to the first byte of its body, or to its end if it has none
// ([Policy].Sample). The response is in flight until its end ([WithCompletion]). A failure counts
// as a long latency. From the second failure in a row, the endpoint also counts as busy. The
// classifier of the endpoints, or [WithClassifier], determines which responses are failures. A
// canceled request shows only that the latency is at least the time that it waited. From the third
// consecutive missed deadline of an endpoint, each counts as a failure: see [OutlierDetection].
//
// Connections are balanced like requests. For a service that returns a net.Conn, use
// SampleHeaders for the latency of connects. Use WithCompletion with layer.AtReturn to
// count connects, or with tcplayer.UntilClosed to count open connections.
//
// # Panics
//
// A panic of user code on a goroutine of the balancer does not end the process. If Ready
// panics, the endpoint is not ready, and Ready is called again after a pause. If the
// sequence of changes panics, the last set stays and [Balancer.Describe] shows the error.
// Classifiers and [WithCompletion] run on the goroutine of the caller, or of the reader of
// the response, and panic there.
//
// # Observing a balancer
//
// [Balancer.Describe] and [Balancer.Snapshot] show every endpoint with its state.
// [WithMetrics] writes metrics. layer.Explain records for one request the examined
// endpoints, their costs, and why others were not ready.
package balance
