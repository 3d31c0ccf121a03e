// Package layer is the core of gotower: services, the layers that wrap them,
// and the protocol-neutral layers that every client, proxy and gateway needs.
//
// A [Service] serves requests; a [Layer] wraps a Service in another one; a
// [Stack] is a list of layers, written in the order in which a request meets
// them:
//
//	svc := layer.NewStack[*http.Request, *http.Response]().
//		Timeout(5 * time.Second).
//		Queue(1000, 3*time.Second).
//		Limit(64).
//		Service(endpoint)
//
//	request ─▶ timeout ─▶ queue ─▶ limit ─▶ endpoint
//	                      waits    refuses   serves
//
// # The layers
//
//	time         Timeout  ResponseHeaderTimeout  IdleTimeout  DeadlineFromRequest  DeadlineToRequest
//	admission    Limit  LimitBy  AdaptiveLimit  RateLimit  RateLimitBy  Shed  Queue  Drain
//	failure      Breaker  Gated  Fallback  Reconnect  Switch
//	again        Retry  Hedge: both pay from a Budget
//	composition  Router  Cache  Watch  Lazy  Map…  Then  Filter  If
//	observation  Metrics  Trace  Chaos  Mirror
//
// Each says under the same five headings what it admits, what it does to the
// context, what holds for bodies, which errors it returns and what it costs.
// None starts a goroutine or does I/O when it is applied; what works in the
// background takes a context first and ends with it.
//
// # Order
//
// A client's stack reads, from the outside in:
//
//	Timeout   over everything below, the waiting included
//	Retry     over the queue, whose refusals are not tried again
//	Queue     the one place where requests wait
//	Hedge     below the queue: a copy never stands in line
//	balancer  of package balance; it goes where the request has not been
//	Breaker   of one endpoint, if it fails as a whole: while it is open, that is not ready
//	Limit     what one endpoint is given at a time
//
// and a server's Drain, DeadlineFromRequest, Shed, then a limit. Package httplayer has
// both, and a gateway, as examples that run.
//
// # Judgement
//
// A [Classifier] says what an outcome means: one for a stack, shared by Retry,
// Breaker, Hedge, AdaptiveLimit and Metrics. Who cancelled, was refused or met
// a fault that [FaultInjection] injected counts against nobody.
//
// # Admission
//
// Call admits a request or refuses it, at once and untouched: a refusal
// matches [ErrNotReady], and whoever gets one may send the same request
// elsewhere. Only [Queue] waits. A stack with one Queue waits there, in order
// and for a bounded time; a stack without one sheds load: what a limit, a rate
// or a queue refuses, a [Retry] above passes on at once. It pauses between tries
// of what failed, or found no endpoint. Ready is a hint for accept loops,
// fail-over and balancers, and is never called before each request.
//
// # Ends
//
// A response may be read long after Call returned. A [Completion] says where
// it ends, so that slots, contexts and measurements are held exactly so long.
// The default, [AtEnd], knows every response with a Body, *http.Response
// among them. What a protocol knows beyond that, how a request is sent again, a
// [Replayer] says.
//
// # Errors
//
// An [Error] says which layer decided, for which target and endpoint, why, and
// how long the request had waited; it passes [errors.Is] and [errors.As]
// through to its cause.
//
// # Panics
//
// A callback is a function or method that you give to this library: a [Classifier],
// a [Span], a [Completion], a key function, a [MakeService], a matcher, an instrument, the
// Close of a body. One that panics never ends the process and never keeps a slot,
// a probe or a response:
//
//   - In Call, Ready, Read, Close and Set, which run on a goroutine of the caller,
//     the panic goes on to the caller once everything is released. A response that
//     cannot be returned any more is discarded.
//   - On a goroutine of this library (the end of a context, a timer, the copy of a
//     [Hedge], a connect of [Reconnect]) it is recovered, and becomes a
//     [PanicError] of the request or the response that it belongs to: the error of
//     the copy, of Close, of the last connect.
//   - A panic that belongs to no request, as that of a [Mirror]'s copy, counts as a
//     failure where there is a count and is dropped otherwise. So is that of an
//     instrument on such a goroutine.
//
// # Your own layer
//
// Embed the inner Service and override Call. Ready is then forwarded, and a
// layer that does nothing costs an indirect call:
//
//	type logged struct{ layer.Service[string, string] }
//
//	func (l logged) Call(ctx context.Context, req string) (string, error) {
//		log.Println(req)
//		return l.Service.Call(ctx, req)
//	}
//
// A layer that holds something, a slot or a token, refuses a request whose
// context is done before it takes that:
//
//	if ctx.Err() != nil {
//		return rsp, &layer.Error{Layer: "mine", Kind: layer.ErrNotReady, Err: context.Cause(ctx)}
//	}
//
// Package layertest proves that a layer keeps these rules.
package layer
