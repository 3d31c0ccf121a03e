// Package grpclayer carries layers, discovery and balancing into grpc-go:
// nothing but translation.
//
//	calls          layer.Layer[*Call, *Reply]   ──▶  interceptors: Client, Server
//	discovery      resolve.Resolver             ──▶  resolver.Builder: NewResolver
//	balancing      balance.Balancer             ──▶  balancer.Builder: NewBalancer, Register
//	endpoints      layer.Layer[PickInfo, *Picked] ─▶  around the picks of each: WithEndpointLayer
//
// All of it for a plain client:
//
//	grpclayer.Register("gotower") // once, at the start of the program
//
//	options := grpclayer.DialOptions("gotower", resolver,
//		grpclayer.WithCallLayer(grpclayer.NewStack().Timeout(5*time.Second).Layer()),
//		grpclayer.WithEndpointLayer(grpclayer.NewEndpointStack().Limit(100).Layer()),
//	)
//	cc, err := grpc.NewClient("gotower:///web.default:80", append(options, credentials)...)
//
// A call on its way through such a client:
//
//	Client      Calls: timeout, retry, budget
//	gRPC        asks the picker
//	balance     of a few ready endpoints the cheapest one
//	endpoint    WithEndpointLayer: breaker, limit; a refusal is offered to others
//	gRPC        the SubConn, bytes out
//
// # Reasons
//
// gRPC lets calls wait for a connection, and then says that time ran out. Here
// the reason comes along: in the text of the status, and, where the call went
// through a [Client], as the balancer's refusal itself. A call of which nothing
// was sent matches [layer.ErrNotReady] whatever code it has, so that layers
// may send it again free of any budget.
//
// # Panics
//
// A panic in the goroutine of an RPC, as of a layer, a codec or the credentials of a
// call, reaches the caller of the RPC once its slots are free. Where layers run beside
// the caller of a stream of responses, the next call of RecvMsg, Header or Trailer
// panics.
//
// A panic elsewhere does not end the process:
//
//   - A resolver that panics has ended. The panic is its last error, and the last set
//     stays in force.
//   - An endpoint for which the [WithEndpointLayer] panics is closed.
//   - A panic of [WithOnBalancer], and of an observer at the end of a pick or of a stream
//     whose ClientConn is closed, is dropped. So is that of an OnFinish of a stream.
//
// A panic of what only gRPC calls, as a stats handler, a dialer or transport
// credentials, is up to gRPC.
package grpclayer
