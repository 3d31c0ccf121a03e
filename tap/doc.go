// Package tap shows live requests to watchers without delaying them.
//
//	request ─▶ balance ─▶ limit ─▶ tap ─▶ endpoint
//	                                │
//	                                ▼ events, never waited for
//	                             Registry ─▶ Server ─▶ gRPC ─▶ Observe
//
// Place a [Layer] at each endpoint, below the balancer, limits and breakers, so that it
// sees each attempt and its destination. Without watchers it costs one atomic load.
// A watcher has a condition. A request that matches it causes three events: a
// [RequestInit] before it is forwarded, a [ResponseInit] and a [ResponseEnd].
//
// A [Server] serves watchers over gRPC. It implements linkerd's io.linkerd.proxy.tap.Tap, whose
// client is [Observe]; package match writes the conditions. It also has a service of package tappb
// with conditions on headers and responses, sampling, durations, bodies, and explanations (see
// [Explain]). [Watch] is its client, and [Registry.Watch] is the same in the process.
//
// One line adds a tap to a program:
//
//	a handler       httplayer.Middleware(tap.Layer(reg, httplayer.Accessor{}, tap.Inbound))(handler)
//	an http.Client  httplayer.Transport(tap.Layer(reg, httplayer.Accessor{}, tap.Outbound), client.Transport)
//	a gRPC server   grpclayer.NewServer(tap.Layer(reg, grpclayer.Accessor{}, tap.Inbound)).ServerOptions()
//	a gRPC client   grpclayer.NewClient(tap.Layer(reg, grpclayer.Accessor{}, tap.Outbound)).DialOptions()
//	connections     tap.Connections(reg)(service)
//
// Use [Serve] in a process without a gRPC server, and [NewServer] otherwise.
//
// # Events
//
// A request without a response shows a RequestInit and a ResponseEnd. The RequestInit is sent at
// once, because requests that hang must be visible. A rejection ([layer.ErrNotReady]) has reset
// code 7, HTTP/2's REFUSED_STREAM. A gRPC call that fails with a status of the server has a
// response as well. Bytes of a gRPC call are counted without
// compression. Connections are shown only by gotower's own service, see [Connections].
//
// # Cost
//
// Every watcher has a buffer of 400 events and 768 KiB of text, bodies and explanations. Events
// that do not fit are dropped and counted for this watcher alone. If its RequestInit does not fit,
// a request is not shown at all and counts as one dropped event.
//
// # Secrets
//
// Header values are sent only on request. Some are replaced and cannot be matched:
// Authorization, Cookie, names that end in one of these, and names that contain key,
// token, secret, password or credential. [WithRevealed] shows a header,
// WithRevealed("Idempotency-Key"), and [WithRedacted] hides more.
//
// User information in a URI is never shown. Queries and fragments are replaced in :path,
// Location, Content-Location, Referer, Refresh and the URI headers of proxies.
// WithRevealed("query") shows them; the path of a [RequestInit] never has them. Parameters
// with secret names are replaced also then. Bodies are shown only through the function
// of [WithBodies]. Explanations are shown without secrets of the request.
package tap
