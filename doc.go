// Package gotower is the root of a library of middleware for HTTP and gRPC clients, gateways and
// proxies. It spreads requests over a service's servers, retries and limits them, and shows them
// live.
//
// This package contains no code. Everything in the others is a Service, which you can call and ask
// whether it is ready, or a Layer, which wraps a Service in another one. Start with package
// [github.com/gotower/gotower/layer], which explains both, with the small programs in
// examples/hello, or with the demo:
//
//	go run ./examples/hello/client
//	go run ./examples/demo
//
// The path of a request:
//
//	request ─▶ timeout ─▶ retry ─▶ queue ─▶ balancer ─▶ limit, breaker ─▶ tap ─▶ endpoint ─▶ server
//	                                           ▲
//	name ─▶ resolver ─▶ endpoints, updated as they change
//
// You can use each package alone:
//
//   - [github.com/gotower/gotower/httpclient]: HTTP clients and upstreams with one call
//   - [github.com/gotower/gotower/layer]: services, layers, stacks
//   - [github.com/gotower/gotower/layer/httplayer]: HTTP servers, handlers, clients, endpoints
//   - [github.com/gotower/gotower/layer/grpclayer]: interceptors, resolver and balancer of grpc-go
//   - [github.com/gotower/gotower/layer/kitlayer]: endpoints and middleware of go-kit
//   - [github.com/gotower/gotower/layer/tcplayer]: connections
//   - [github.com/gotower/gotower/layer/layertest]: conformance tests for services and layers
//   - [github.com/gotower/gotower/resolve]: where endpoints come from
//   - [github.com/gotower/gotower/discover]: turns updates of endpoints into services
//   - [github.com/gotower/gotower/balance]: sends a request to the endpoint expected to answer first
//   - [github.com/gotower/gotower/profiles]: routes and splits that change while requests run
//   - [github.com/gotower/gotower/instrument/promtower]: metrics for Prometheus
//   - [github.com/gotower/gotower/tap]: live requests, for allowed watchers
package gotower
