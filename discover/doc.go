// Package discover keeps services for things that come and go: the endpoints
// of a target, and the targets themselves.
//
//	resolve.Resolver ──Update──▶ Endpoints ──Change──▶ a balancer
//	                              │ Make, once for each new resolve.ID
//	                              ▼
//	                           Endpoint.Service, its context, its open calls
//
//	key ──▶ Cache ──Make, once for each key──▶ a balancer, a client, ...
//
// [Endpoints] turns the updates of a resolver into a sequence of changes. State
// follows identity: as long as an endpoint's [resolve.ID] stays, its service
// stays, and with it its connections and whatever a consumer keeps for it. An
// endpoint that went is drained: it gets nothing new, finishes what it has,
// and only then does the context end that its service was made with.
//
// [Cache] keeps one service for each key, shared by all callers, made when
// first used and dropped when it was idle for a while. One resolution for each
// target, however many requests go there, is a Cache of balancers:
//
//	targets := discover.NewCache(ctx, func(ctx context.Context, target string) layer.Service[Req, Rsp] {
//		return balance.Resolve(ctx, resolver, target, endpoint)
//	})
//	svc := layer.Router(targetOf, targets.Service)
//
// Neither has a Close: both live as long as the context that they were given.
package discover
