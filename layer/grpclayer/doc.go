// Package grpclayer connects layers, discovery and balancing with grpc-go:
//
//	calls       layer.Layer[*Call, *Reply]    ──▶  interceptors: Client, Server
//	discovery   resolve.Resolver              ──▶  resolver.Builder: NewResolver
//	balancing   balance.Balancer              ──▶  balancer.Builder: NewBalancer, Register
//	endpoints   layer.Layer[PickInfo, *Pick]  ──▶  an endpoint's picks: WithEndpointLayer
//
// [DialOptions] uses all of them for a client:
//
//	grpclayer.Register("gotower") // once, at the start of the program
//
//	options := grpclayer.DialOptions("gotower", resolver,
//		grpclayer.WithCallLayer(grpclayer.NewStack().Timeout(5*time.Second).Layer()),
//		grpclayer.WithEndpointLayer(grpclayer.NewEndpointStack().Limit(100).Layer()),
//	)
//	cc, err := grpc.NewClient("gotower:///web.default:80", append(options, credentials)...)
//
// The path of a call through such a client:
//
//	WithCallLayer      timeout, retry, budget
//	gRPC               calls the picker
//	balance            the endpoint with the lowest cost among a few ready ones
//	WithEndpointLayer  breaker, limit; after a rejection another endpoint is tried
//	gRPC               the SubConn
//
// A pick is the choice of a connection for a call. In gRPC, a picker makes it.
//
// # Errors
//
// If the balancer rejects a call, the status text tells the reason. gRPC itself reports only an
// expired deadline. Through a [Client], the error also matches the balancer's error. The error of
// a call that was not sent matches [layer.ErrNotReady], whatever its code is, so layers may send
// the call again without using a budget.
//
// # Panics
//
// A panic of a layer, a codec or call credentials runs on an RPC's goroutine. It reaches the
// caller after the RPC's slots are released. For a stream with one request and many responses it
// may reach the next RecvMsg, Header or Trailer.
//
// Other panics do not end the process:
//
//   - If a resolver panics, its resolution ends. The balancer gets the panic as an error
//     and keeps the last endpoints.
//   - If a layer of [WithEndpointLayer] panics when it is applied, the endpoint rejects
//     all picks with [layer.ErrClosed].
//   - Panics in [WithOnBalancer], in OnFinish, and in observers at the end of a pick
//     are dropped.
//
// gRPC itself handles panics in stats handlers, dialers and transport credentials.
package grpclayer
