// Package balance sends each request to the endpoint that is expected to answer first.
//
// Round robin is fair to servers, but not to your requests: a server that is slow today, starts with a cold cache or shares
// its machine gets as many requests as the others, and the slowest one determines your 99th percentile. A [Balancer]
// measures each endpoint and gives it what it can do. It also avoids endpoints that fail or hang, after the first failure
// and without a health check, and finds out quickly when they are back:
//
//	endpoint := func(ctx context.Context, t discover.Target) httplayer.Service {
//		return httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String())
//	}
//	web := balance.Resolve(ctx, resolver, balance.Config{Target: "web.default:80"}, endpoint)
//	rsp, err := web.Call(ctx, req) // rejected if no endpoint is ready: put a layer.Queue above
//
// The default policy usually is what you want. Choose [LeastRequest] if a few requests are a hundred times as expensive as
// the others, because their latency then tells nothing about the endpoint; [ConsistentHash] if endpoints cache data or keep
// sessions for their clients; [RoundRobin] if requests must be spread evenly. SIMULATION.md compares the default with other
// balancers.
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
// The cost of an endpoint is its expected latency times the number of requests that it would have in flight, divided by its
// weight. A weight is an endpoint's capacity, such as its number of workers. It is not its speed, because the latency
// already includes it. The expected latency is a moving average over logarithms. It ages towards the median of all
// endpoints, so that a slow endpoint is tried again. A pick does not change an expected latency. For an endpoint without
// samples, the median takes its place. Such an endpoint gets one request, then two, four and eight at a time, until its
// latency is known.
//
// [Policy] configures the pick, the cost, slow start, zones and outlier detection. [Balancer.SetPolicy] changes it.
//
// The cost is Finagle's Peak EWMA ("Beyond Round Robin: Load Balancing for Latency", Buoyant, 2016), with a logarithmic
// average in place of the peak. Choosing the cheapest from a sample extends the power of two choices (Mitzenmacher, "The
// Power of Two Choices in Randomized Load Balancing", 1996): as many as 24 choices cost little, and more than two help if
// the endpoints differ. The aperture is Finagle's ("Aperture Load Balancers"), too.
//
// # Priorities and localities
//
// The endpoints with resolve.Endpoint.Priority 0 get all requests as long as at least 71 % of them are healthy, which means
// ready and not doubted. With fewer, the next priority gets some of the requests: 1 − 1.4 · h/n, if h of n are healthy.
// This is Envoy's rule, with its overprovisioning factor of 1.4. gRPC (gRFC A56) uses the next priority only when none of
// the first is ready. If localities are weighted, a priority's requests are divided among them in proportion to weight
// times health. A doubted endpoint of an unused priority is probed as well. Package resolve lists the resolvers that know
// priorities and localities.
//
// [Policy].Zone prefers one locality within a priority, by load instead of health.
//
// # Admission
//
// A [Balancer] rejects requests and never lets them wait, so you should usually place a layer.Queue above it. An endpoint
// that rejects a request leaves the ready set until its Ready returns. The request goes to another endpoint and uses no
// retry budget. The same applies to a layer.Breaker in the endpoint's stack. If fewer endpoints than [OutlierDetection]'s
// MinReady would be left, breakers are ignored for a second.
//
// Retries and hedges go to an endpoint that the request has not tried; layer.Retry and layer.Hedge record the tried ones in
// the request context. Requests with the same layer.WithAffinity go to the same endpoint with [ConsistentHash].
//
// An endpoint keeps its statistics as long as its resolve.ID stays the same.
//
// # Measuring a response
//
// A response's latency is the time to the first byte of its body, or to its end if the body is empty ([Policy].Sample). The
// response is in flight until its end ([WithCompletion]). If a request failed or was canceled, the balancer learns only
// that the latency is at least the time that passed.
//
// Connections are balanced like requests. For a service that returns a net.Conn, use SampleHeaders for the latency of
// connects. To count connects, use WithCompletion with layer.AtReturn; to count open connections, with
// tcplayer.UntilClosed.
//
// # Failures
//
// An endpoint is doubted if it fails with a response of class layer.Retryable, misses several deadlines in a row, or fails
// otherwise so often in a row that its peers' error rate does not explain it. It then gets no requests except a probe after
// 0.1 s, and later one in about 2 s, until the first success; a new connection is probed at once. Application errors, which
// are all other failures, do not move load by themselves. An endpoint whose error rate is significantly higher than that of
// its peers costs more, in proportion to the difference, and so gets fewer requests.
//
// With little traffic, the pauses between probes are longer, so that few requests fail as probes: up to 48 requests per
// endpoint, and 256 if the endpoint hangs. A retry or hedge is never a probe. If more than half of the endpoints are
// doubted, they are avoided less. While most endpoints miss deadlines in more than 10 % of their requests, missed deadlines
// do not begin doubts. The endpoints' classifier, or [WithClassifier], determines a response's class. A missed deadline
// counts as a failure only if it is at least the third or seventh in a row: see [OutlierDetection]. [Policy].Penalty
// determines the costs.
//
// # Panics
//
// A panic of user code on one of the balancer's goroutines does not end the process. If Ready panics, the endpoint is not
// ready, and Ready is called again after a pause. If the sequence of changes panics, the last set stays and
// [Balancer.Describe] shows the error. Classifiers and [WithCompletion] run on the goroutine of the caller or of the
// response's reader, and panic there.
//
// # Observing a balancer
//
// [Balancer.Describe] and [Balancer.Snapshot] show every endpoint and its state. Metrics in a [Config] writes metrics.
// layer.Explain records, for a single request, the examined endpoints, their costs, and why others were not ready.
package balance
