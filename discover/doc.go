// Package discover keeps a service for each endpoint of a target.
//
//	resolve.Resolver ──Update──▶ Endpoints ──Change──▶ a balancer
//	                              │ MakeService, once for each new resolve.ID
//	                              ▼
//	                           Endpoint.Service, its context, its open calls
//
// [Endpoints] turns the updates of a resolver into a sequence of changes. As long as
// an endpoint's [resolve.ID] stays the same, its service stays, and with it its
// connections and the state that a consumer keeps. If the ID at an address changes,
// the old service serves until the new one is ready: see [WithHandoverTimeout]. A
// removed endpoint is drained: it gets no new requests and finishes those it has.
// Then the context of its service ends.
//
// A [layer.Cache] of balancers resolves each target once:
//
//	targets := layer.NewCache(ctx, func(ctx context.Context, target string) layer.Service[Req, Rsp] {
//		return balance.Resolve(ctx, resolver, target, endpoint)
//	}, layer.CachePolicy{})
//	svc := targets.Router(targetOf)
//
// There is no Close: everything ends with the context of [Endpoints].
//
// A panic of user code on a goroutine of this package does not end the process. An
// endpoint whose [MakeService] panics has a closed service. A Ready that panics means
// not ready. A resolver that panics has ended: the panic is its last error, and the
// last set stays.
package discover
