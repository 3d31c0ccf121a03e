// Package grpclayer carries layers, discovery and balancing into grpc-go:
// nothing but translation.
//
//	calls          layer.Layer[*Call, *Reply]   ──▶  interceptors: Client, Server
//	discovery      resolve.Resolver             ──▶  resolver.Builder: NewResolver
//	balancing      balance.Balancer             ──▶  balancer.Builder: NewBalancer, Register
//	endpoints      layer.Layer[PickInfo, *Picked] ─▶  around the picks of each: EndpointLayer
//
// All of it for a plain client:
//
//	grpclayer.Register("gotower") // once, at the start of the program
//
//	options := grpclayer.DialOptions("gotower", resolver,
//		grpclayer.Calls(grpclayer.NewStack().Timeout(5*time.Second).Layer()),
//		grpclayer.EndpointLayer(grpclayer.NewEndpointStack().Limit(100).Layer()),
//	)
//	cc, err := grpc.NewClient("gotower:///web.default:80", append(options, credentials)...)
//
// A call on its way through such a client:
//
//	Client      Calls: timeout, retry, budget
//	gRPC        asks the picker
//	balance     of a few ready endpoints the cheapest one
//	endpoint    EndpointLayer: breaker, limit; a refusal is offered to others
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
// A panic of a layer, a classifier or a codec reaches the caller of the RPC. Where
// layers run beside the caller of a stream of responses, it is the next call of
// RecvMsg, Header or Trailer that panics.
package grpclayer
