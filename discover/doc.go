// Package discover keeps a service for each endpoint of a target.
//
//	resolve.Resolver ──Update──▶ Endpoints ──Change──▶ a balancer
//	                              │ MakeService, once for each new resolve.ID
//	                              ▼
//	                           Endpoint.Service, its context, its open calls
//
// [Endpoints] converts the updates of a resolver to a sequence of changes. As long as the
// [resolve.ID] of an endpoint stays the same, its service stays. The connections of the service and
// the state that the consumer keeps for the endpoint stay too. If the ID at an address changes, one
// [Change] removes the old endpoint and adds a new one. A removed endpoint gets no new requests.
// The context of its service ends after the last response of the service.
//
// With a [layer.Cache] of balancers, each target is resolved once:
//
//	targets := layer.NewCache(ctx, func(ctx context.Context, target string) layer.Service[Req, Rsp] {
//		return balance.Resolve(ctx, resolver, target, endpoint)
//	}, layer.CachePolicy{})
//	svc := targets.Router(targetOf)
//
// The contexts of all services end with the context of [Endpoints].
//
// A panic of user code on a goroutine of this package does not end the process. If [MakeService]
// panics, the endpoint rejects requests with [layer.ErrClosed]. If a resolver panics, [Endpoints]
// yields the panic as the last error, and the last set of endpoints stays.
package discover
