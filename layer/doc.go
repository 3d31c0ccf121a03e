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
//	                      waits    rejects   serves
//
// # The layers
//
//	time         Timeout  ResponseHeaderTimeout  IdleTimeout  DeadlineFromRequest  DeadlineToRequest
//	admission    Limit  LimitBy  AdaptiveLimit  RateLimit  RateLimitBy  Shed  Queue  Drain
//	failure      Breaker  Gated  Fallback  Reconnect  Failover
//	retries      Retry  Hedge: both withdraw from a Budget
//	composition  Router  Cache  Reloadable  Lazy  Map…  Filter
//	observation  Metrics  Trace  FaultInjection  Mirror
//
// The documentation of each layer has the headings Admission, Cancellation, Body, Errors
// and Cost. Applying a layer starts no goroutine and does no I/O. A layer that works in
// the background takes a context first and ends with it. Constructors panic on invalid
// policies and nil functions.
//
// # Order
//
// A client's stack, from the outside in:
//
//	Timeout   over everything below, waiting included
//	Retry     above the queue, whose rejections are not retried
//	Queue     the only place where requests wait
//	Hedge     below the queue, because a copy must not wait
//	balancer  of package balance; it avoids endpoints that the request has tried
//	Breaker   of one endpoint; while it is open, the endpoint is not ready
//	Limit     requests in flight to one endpoint
//
// A server's stack is Drain, DeadlineFromRequest, Shed and a limit. Package httplayer has
// examples of both, and of a gateway.
//
// # Classification
//
// A [Classifier] returns the class of an outcome. Retry, Breaker, Hedge, AdaptiveLimit and
// Metrics of a stack share one. Cancellations by the caller, rejections and the faults of
// [FaultInjection] do not count against a service.
//
// # Admission
//
// Call admits a request or rejects it at once and untouched. A rejection matches
// [ErrNotReady], and the caller may send the same request elsewhere. Only [Queue] waits,
// in order and for a bounded time. Without a Queue a stack sheds load: a [Retry] returns the
// rejections of limits, rates and queues at once. Ready is a hint for accept loops,
// failover and balancers. Never call it before each request.
//
// # Ends
//
// A response may be read long after Call returned. A [Completion] defines its end, until
// which slots, contexts and measurements are held. The default, [AtEnd], knows every
// response with a Body, such as *http.Response. A [Replayer] has the rules of a
// protocol for retries.
//
// # Errors
//
// An [Error] has the layer, target, endpoint, reason and waiting time. [errors.Is] and
// [errors.As] find its cause.
//
// # Panics
//
// A callback is a function or method that you give to this library: a [Classifier],
// a [Span], a [Completion], a key function, a [MakeService], a matcher, an instrument,
// a log handler, the Close of a body. One that panics never ends the process and never keeps a slot,
// a probe or a response:
//
//   - In Call, Ready, Read, Close and Set, which run on a goroutine of the caller,
//     the panic reaches the caller once everything is released. A response that
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
// A layer that holds something, a slot or a token, rejects a request whose
// context has ended before it takes that:
//
//	if ctx.Err() != nil {
//		return rsp, &layer.Error{Layer: "mine", Kind: layer.ErrNotReady, Err: context.Cause(ctx)}
//	}
//
// Package layertest proves that a layer keeps these rules.
package layer
