// Package gotower is the balancing, retry-budget and live-tap half of a
// service mesh, as a Go library: composable middleware in the manner of
// tower, and the parts of linkerd's proxy.
//
// This package has no code. The folders are the path of a request:
//
//	            layer      Service, Layer, Stack; timeout, queue, limit, ...
//	              │  layer/httplayer   net/http in and out
//	request ─▶  profiles   route = first match; split picks the target
//	              │
//	            discover   target ─▶ balancer, one each, fed by resolve
//	              │
//	            balance    the endpoint of the lowest cost among a few ready ones
//	              │
//	            tap        one atomic load without watchers
//	              │
//	            endpoint ─▶ bytes out
//
// Start with package [github.com/gotower/gotower/layer], which explains the
// contract of all other packages, or run the demo:
//
//	go run ./examples/demo
//
// Each package is useful alone:
//
//   - [github.com/gotower/gotower/layer]: services, layers, stacks
//   - [github.com/gotower/gotower/layer/layertest]: tests of the contract
//   - [github.com/gotower/gotower/layer/httplayer]: net/http both ways
//   - [github.com/gotower/gotower/resolve]: the endpoints of a name, as a stream
//   - [github.com/gotower/gotower/discover]: a service for each endpoint
//   - [github.com/gotower/gotower/balance]: the ready endpoint of the lowest cost
//   - [github.com/gotower/gotower/profiles]: routes and splits that change live
//   - [github.com/gotower/gotower/tap]: live requests, for allowed watchers
package gotower
