// Package gotower is the balancing, retry-budget and live-tap half of a
// service mesh, as a Go library: composable middleware in the manner of
// tower, and the parts that linkerd's proxy is made of.
//
// This package holds no code. The folders are the path of a request:
//
//	            layer      Service, Layer, Stack; timeout, queue, limit, ...
//	              │  layer/httplayer   net/http in and out
//	request ─▶  profiles   route = first match; split picks the target
//	              │
//	            discover   target ─▶ balancer, one each, fed by resolve
//	              │
//	            balance    a few ready endpoints looked at, the cheapest wins
//	              │
//	            tap        one atomic load, unless somebody watches
//	              │
//	            endpoint ─▶ bytes out
//
// Start with package [github.com/gotower/gotower/layer], which explains the
// contract that everything else keeps, or run the demo:
//
//	go run ./examples/demo
//
// Each package is useful alone:
//
//   - [github.com/gotower/gotower/layer]: services, layers, stacks
//   - [github.com/gotower/gotower/layer/layertest]: proves a layer right
//   - [github.com/gotower/gotower/layer/httplayer]: net/http both ways
//   - [github.com/gotower/gotower/resolve]: a name becomes a stream of endpoints
//   - [github.com/gotower/gotower/discover]: endpoints become services
//   - [github.com/gotower/gotower/balance]: the cheapest ready endpoint
//   - [github.com/gotower/gotower/profiles]: routes and splits that change live
//   - [github.com/gotower/gotower/tap]: live requests, to whoever may watch
package gotower
