// Package discover keeps services for things that come and go: the endpoints
// of a target.
//
//	resolve.Resolver ──Update──▶ Endpoints ──Change──▶ a balancer
//	                              │ Make, once for each new resolve.ID
//	                              ▼
//	                           Endpoint.Service, its context, its open calls
//
// [Endpoints] turns the updates of a resolver into a sequence of changes. State
// follows identity: as long as an endpoint's [resolve.ID] stays, its service
// stays, and with it its connections and whatever a consumer keeps for it. An
// endpoint whose ID changed, at the same address, serves until the service of
// the new ID is ready, within bounds: see [WithHandoverTimeout]. An endpoint that went is
// drained: it gets nothing new, finishes what it has, and only then does the
// context end that its service was made with.
//
// Nothing waits for a service but what is its own: a MakeService or a Ready that hangs
// keeps no endpoint from coming or going, not even its own from going.
//
// One resolution for each target, however many requests go there, is a
// [layer.Cache] of balancers:
//
//	targets := layer.NewCache(ctx, func(ctx context.Context, target string) layer.Service[Req, Rsp] {
//		return balance.Resolve(ctx, resolver, target, endpoint)
//	}, layer.CachePolicy{})
//	svc := targets.Router(targetOf)
//
// There is no Close: what is made lives as long as the context that was given.
//
// A panic of user code in a goroutine of this package does not end the process, and
// concerns one endpoint or one resolver. An endpoint whose [MakeService] panics has a closed
// service. A Ready that panics means not ready. A resolver that panics has ended: the
// panic is its last error, and the last set stays in force.
package discover
