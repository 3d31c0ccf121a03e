// Package discover keeps a service for each endpoint of a target.
//
//	resolve.Resolver ──Update──▶ Endpoints ──Change──▶ a balancer
//	                              │ MakeService, once for each new resolve.ID
//	                              ▼
//	                           Endpoint.Service, its context, its open calls
//
// [Endpoints] converts a resolver's updates to a sequence of changes. As long as an endpoint's
// [resolve.ID] stays the same, so do its service, the service's connections, and the state that the
// consumer keeps for the endpoint. If the ID at an address changes, one [Change] removes the old
// endpoint and adds a new one. A removed endpoint gets no new requests. Its service's context ends
// after the last response.
//
// With a [layer.Cache] of balancers, each target is resolved once:
//
//	targets := layer.NewCache(ctx, func(ctx context.Context, target string) layer.Service[Req, Rsp] {
//		return balance.Resolve(ctx, resolver, balance.Config{Target: target}, endpoint)
//	}, layer.CachePolicy{})
//	svc := targets.Router(targetOf)
//
// All service contexts end with that of [Endpoints].
//
// A panic of user code on one of this package's goroutines does not end the process. If
// [MakeService] panics, the endpoint rejects requests with [layer.ErrClosed]. If a resolver panics,
// [Endpoints] yields the panic as the last error, and the last set stays.
package discover
