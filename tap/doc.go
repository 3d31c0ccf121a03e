// Package tap shows live requests to watchers without delaying them.
//
//	request ─▶ balance ─▶ limit ─▶ tap ─▶ endpoint
//	                                │
//	                                ▼ events, never waited for
//	                             Registry ─▶ Server ─▶ gRPC ─▶ Observe
//
// Place a [Layer] at each endpoint, below the balancer, limits and breakers. There it sees each
// attempt and its destination. Without watchers, the Layer costs one atomic load per request.
// A watcher has a condition. A request that matches it causes three events: a [RequestInit]
// before the request is forwarded, a [ResponseInit] when the response headers arrive, and a
// [ResponseEnd] when the response body has ended.
//
// A [Server] serves watchers over gRPC. It implements linkerd's io.linkerd.proxy.tap.Tap.
// [Observe] is the client of that service, and package match builds the conditions for it.
// The Server also implements gotower's own service (package tappb). That service adds
// conditions on headers and responses, sampling, durations, bodies, and explanations (see
// [Explain]). [Watch] is its client. [Registry.Watch] shows the same events without gRPC,
// to a watcher in the process.
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
// A request without a response causes a RequestInit and a ResponseEnd. The RequestInit is sent at
// once, because requests that hang must be visible. A rejection ([layer.ErrNotReady]) has the
// reset code 7, HTTP/2's REFUSED_STREAM. A gRPC call that fails with a status of the server has a
// ResponseInit as well. The bytes of a gRPC call are counted without compression. Connections are
// shown only by gotower's own service, see [Connections].
//
// # Cost
//
// Every watcher has a buffer of 400 events and 768 KiB of text, bodies and explanations.
// Events that do not fit are dropped and counted. Other watchers still get them. If the
// RequestInit of a request does not fit, the request is not shown at all and counts as one
// dropped event.
//
// # Secrets
//
// Header values are sent only to watchers that request them. The values of secret fields
// are replaced and cannot be matched. A field is secret if its last word is Authorization,
// Cookie or sig, or if its name contains key, token, secret, password, passwd, credential,
// session, signature or jwt. [WithRevealed] shows such a field, as
// WithRevealed("Idempotency-Key") does. [WithRedacted] hides more fields.
//
// User information in a URI is never shown. Queries and fragments are replaced in :path,
// Location, Content-Location, Referer, Refresh and the headers in which proxies pass a URI.
// WithRevealed("query") shows them, except the values of parameters with secret names. The
// path of a [RequestInit] never has a query. Bodies are shown only through the function of
// [WithBodies]. Explanations are shown with the secrets of the request replaced.
package tap
