// Package grpclayer connects layers, discovery and balancing with grpc-go:
//
//	calls       layer.Layer[*Call, *Reply]    ──▶  interceptors: Client, Server
//	discovery   resolve.Resolver              ──▶  resolver.Builder: NewResolver
//	balancing   balance.Balancer              ──▶  balancer.Builder: NewBalancer, Register
//	endpoints   layer.Layer[PickInfo, *Pick]  ──▶  the picks of an endpoint: WithEndpointLayer
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
//	balance            the endpoint of the lowest cost among a few ready ones
//	WithEndpointLayer  breaker, limit; after a rejection another endpoint is tried
//	gRPC               the SubConn
//
// # Errors
//
// A rejection by the balancer has its reason in the text of the status, because
// gRPC reports only an expired deadline. Through a [Client] it is also the error
// of the balancer itself. A call that was not sent matches [layer.ErrNotReady]
// with any code, so that layers may send it again without using a budget.
//
// # Panics
//
// A panic in the goroutine of an RPC reaches the caller after its slots are free.
// Examples are layers, codecs and call credentials. For a stream of responses it
// may reach the next RecvMsg, Header or Trailer.
//
// Other panics do not end the process:
//
//   - A resolver that panics has ended. The panic is its last error, and the last
//     endpoints remain.
//   - An endpoint whose [WithEndpointLayer] panics is closed.
//   - Panics of [WithOnBalancer], of OnFinish, and of observers at the end of a pick
//     are dropped.
//
// Panics of stats handlers, dialers and transport credentials belong to gRPC.
package grpclayer
