// Package discover keeps a service for each endpoint of a target.
//
//	resolve.Resolver ──Update──▶ Endpoints ──Change──▶ a balancer
//	                              │ MakeService, once for each new resolve.ID
//	                              ▼
//	                           Endpoint.Service, its context, its open calls
//
// [Endpoints] converts the updates of a resolver to a sequence of changes. As long as the
// [resolve.ID] of an endpoint stays the same, its service stays, with its connections and
// the state of the consumer. If the ID at an address changes, one [Change] removes the old
// endpoint and adds a new one. A removed endpoint is drained: it gets no new requests, and
// the context of its service ends after its last response.
//
// With a [layer.Cache] of balancers, each target is resolved once:
//
//	targets := layer.NewCache(ctx, func(ctx context.Context, target string) layer.Service[Req, Rsp] {
//		return balance.Resolve(ctx, resolver, target, endpoint)
//	}, layer.CachePolicy{})
//	svc := targets.Router(targetOf)
//
// Everything ends with the context of [Endpoints].
//
// A panic of user code on a goroutine of this package does not end the process. If
// [MakeService] panics, the endpoint has a closed service. If a resolver panics, its last
// error is the panic, and the last set of endpoints stays.
package discover
