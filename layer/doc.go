// Package layer is the core of gotower: services, the layers that wrap them, and layers that work
// with every protocol.
//
// A [Service] serves requests, and a [Layer] wraps a Service in another one. A [Stack] is a list of
// layers in the order in which a request passes them:
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
//	admission    Limit  AdaptiveLimit  RateLimit  RateLimitBy  Shed  Queue  Drain
//	failure      Breaker  Fallback  Reconnect
//	retries      Retry  Hedge: both withdraw from a Budget
//	composition  Router  Cache  Lazy  Shared  Only  MapRequest  MapResponse  Filter
//	observation  Metrics  Trace  FaultInjection  Mirror
//
// The documentation of each layer is divided into Admission, Cancellation, Body, Errors and Cost. In
// it, inner is the wrapped service. Applying a layer starts no goroutine and does no I/O. A layer
// with background work takes a context as its first argument, and the work ends with that context.
// Constructors panic on invalid policies and nil functions.
//
// # Order
//
// A client's stack, from the outside in:
//
//	Timeout   over everything below, waiting included
//	Retry     above the queue; it does not retry the queue's rejections
//	Queue     the only place where requests wait
//	Hedge     below the queue, because a copy must not wait
//	balancer  from package balance; it avoids endpoints that the request has tried
//	Breaker   one per endpoint; while it is open, the endpoint is not ready
//	Limit     requests in flight to one endpoint
//
// A server's stack usually consists of Drain, DeadlineFromRequest, Shed and a limit. Package
// httplayer shows examples of both, and of a gateway.
//
// # Classification
//
// A [Classifier] returns an outcome's class. Within a stack, Retry, Breaker, Hedge, AdaptiveLimit
// and Metrics share one Classifier. Cancellations by the caller, rejections and the faults of
// [FaultInjection] do not count against a service.
//
// # Admission
//
// Call admits a request, or rejects it at once without changing it. A rejection matches
// [ErrNotReady], so the caller may send the same request elsewhere. Only [Queue] lets requests wait,
// in order and for a limited time. Without a Queue a stack sheds load: [Retry] returns the
// rejections of limits, rate limits and queues at once. Ready is a hint for accept loops and
// balancers. You should not call it before each request.
//
// # End of a response
//
// You may read a response long after Call returned. A [Completion] determines when the response
// ends. Until then the response holds its slots, and the request context stays alive. The default,
// [AtEnd], supports responses with a field Body, such as *http.Response. A [Protocol] contains what
// layers know of a protocol: where its responses end, which are failures, and how a request is sent
// again. httplayer.HTTP, grpclayer.GRPC, tcplayer.Bytes and kitlayer.Kit are Protocols. If you write one,
// embed [BaseProtocol].
//
// # Errors
//
// An [Error] names the layer, target, endpoint, reason and waiting time. Its text begins with the
// outermost layer and ends with the cause, so you should read it from the end. Use [errors.Is] and
// [errors.As] to find the cause in a program.
//
// # Panics
//
// A callback is a function or method that your application passes to this library: a [Classifier], a
// [Span], a [Completion], a key function, a [MakeService], an instrument, or a body's Close. A
// panicking callback does not end the process. Its slot, probe or response is released:
//
//   - In Call, Ready, Read, Close and Set, which run on the caller's goroutine, the panic
//     reaches the caller after everything is released. A response that cannot be returned is
//     discarded.
//   - On a goroutine of this library, such as a timer, the copy of a [Hedge] or a connect of
//     [Reconnect], the panic is recovered. It becomes a [PanicError] of the request, of the
//     response or of the connect.
//   - A panic that belongs to no request, such as that of a [Mirror]'s copy or of an
//     instrument, counts as a failure if there is a counter for it. Otherwise it is dropped.
//
// # Your own layer
//
// Embed the inner Service and override Call; Ready is then forwarded. A layer that does nothing
// costs an indirect call:
//
//	type logged struct{ layer.Service[string, string] }
//
//	func (l logged) Call(ctx context.Context, req string) (string, error) {
//		log.Println(req)
//		return l.Service.Call(ctx, req)
//	}
//
// A layer for any protocol has type parameters, and gets an [Accessor] or an [Editor] if it reads or
// changes messages. A layer that takes a slot or a token should first reject requests whose context
// has ended:
//
//	if ctx.Err() != nil {
//		return rsp, &layer.Error{Layer: "mine", Kind: layer.ErrNotReady, Err: context.Cause(ctx)}
//	}
//
// Use package layertest to check that your layer keeps these rules. The module's guides folder
// explains step by step how to write a layer, which limit to choose, and how retries, hedges and
// budgets work together.
package layer
