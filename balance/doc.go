// Package balance spreads requests over the endpoints of a target: the cheapest
// of those that are ready gets the request.
//
//	 changes (discover)                     Call
//	       │                                  │
//	       ▼                                  ▼
//	┌─ unready ─┐   Ready returns nil   ┌── ready ──┐
//	│ ○ ○       │ ────────────────────▶ │ ● ● ● ● ● │  looks at all of sixteen,
//	│ one       │ ◀──────────────────── │           │  or at five of more:
//	│ goroutine │     Call refused      └───────────┘  the cheapest one
//	│ each      │                         │       ▲
//	└───────────┘             fails more  ▼       │  after a while
//	                          than others ejected ┘
//
// What an endpoint costs is its expected latency times the number of requests
// that would then be in flight there, divided by its weight. The expected
// latency is a peak EWMA: it jumps to a latency that is worse at once, comes down
// slowly as better ones come in, and the older it is, the more it becomes what
// is usual among the endpoints, so that one that was slow is tried again. Looking
// at it never changes it. An endpoint of which nothing is known is expected to be
// as usual, and gets one request, then two, four and eight at a time, until
// enough is known; and one more whenever those take far longer than is usual.
//
// [Policy] changes all that: the rule of the pick and the cost, weights and slow
// start, zones, ejection. SIMULATION.md compares the default with the balancers
// of others in the situations that tell them apart; go generate
// ./balance/simulation makes it anew.
//
// A [Balancer] refuses, and never waits: put a layer.Queue above it to wait.
// An endpoint that refuses a request is taken out of the ready set until its
// Ready returns, and the request is offered to others; it was not touched, so
// that this costs no retry budget. A layer.Breaker in the endpoint's stack
// refuses, too, and so takes its endpoint out, unless fewer than [OutlierDetection].Floor of
// the endpoints would be left.
//
// A request that is sent again, as a retry or a hedge, goes to an endpoint
// where it has not been: layer.Retry and layer.Hedge say so in its context.
// Requests with the same layer.WithAffinity go to the same endpoint where the
// pick is [ConsistentHash].
//
// Statistics follow identity: as long as an endpoint's resolve.ID stays, its
// estimate and its in-flight count stay, whatever updates come in.
//
// # When a response counts
//
// The latency of a response is the time to the first byte of its body, or to
// its end if that comes first ([Policy].Sample); it counts as in flight until its
// end ([WithCompletion]). A failure counts as slow however quick it was, and from the second
// in a row the endpoint counts as busy, too. Which responses are failures is for
// the classifier of the endpoints to say, or for [WithClassifier] in its place. A caller
// that cancels, or whose deadline passes, says only that the response would have
// taken at least as long as it waited. The third deadline in a row that an endpoint
// misses, and each after it, is a failure: see [OutlierDetection].
//
// Connections are balanced like requests: a service whose response is a net.Conn
// has the latency of its connects with Sample: SampleHeaders, and counts those under way
// with WithCompletion(layer.AtReturn), or those that are open with
// Until(tcplayer.UntilClosed).
//
// # Panics
//
// A panic of user code in a goroutine of the balancer does not end the process. A
// Ready that panics means not ready, and is asked again after a pause. A sequence of
// changes that panics has ended: the last set stays in force, and
// [Balancer.Describe] shows the error. A metric that panics loses the value.
// Classifiers, [WithRetryAfter], [WithCompletion] and [CostOf] run in the goroutine of the caller,
// or in the one that ends the response, and a panic of them goes there.
//
// # Seeing what it does
//
// [Balancer.Describe] and [Balancer.Snapshot] show every endpoint with its
// state, [WithMetrics] writes metrics, and layer.Explain tells for one request which
// endpoints were looked at, what each would have cost, and why others were out.
package balance
