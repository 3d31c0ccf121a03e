// Package tap shows live requests to watchers without delaying them.
//
//	request ─▶ balance ─▶ limit ─▶ tap ─▶ endpoint
//	                                │
//	                                ▼ events, never waited for
//	                             Registry ─▶ Server ─▶ gRPC ─▶ Observe
//
// You should place a [Layer] at each endpoint, below the balancer, limits and breakers, where it sees each
// attempt and its destination. A second Layer at the front of a server, added with httplayer.WithObserver,
// shows what clients get, rejected requests included; with [WithRouteBelow], it also shows the route that a
// router below chooses. examples/gateway uses both Layers. Without watchers, a Layer
// costs one atomic load per request. A watcher specifies a condition. A matching request causes three
// events: a [RequestInit] before the request is forwarded, a [ResponseInit] when the response headers
// arrive, and a [ResponseEnd] when the response body has ended.
//
// A [Server] serves watchers over gRPC. It implements linkerd's io.linkerd.proxy.tap.Tap, for which
// [Observe] is the client and package match builds conditions. The Server also implements gotower's own
// service (package tappb), with [Watch] as its client. It adds conditions on headers and responses,
// sampling, durations, bodies, and explanations (see [Explain]). [Registry.Watch] shows the same events
// within the process, without gRPC.
//
// You can add a tap to your program with one line:
//
//	a handler       httplayer.Middleware(tap.Layer(reg, httplayer.HTTP{}, tap.Inbound))(handler)
//	an http.Client  httplayer.Transport(tap.Layer(reg, httplayer.HTTP{}, tap.Outbound), client.Transport)
//	a gRPC server   grpclayer.NewServer(tap.Layer(reg, grpclayer.GRPC{}, tap.Inbound)).ServerOptions()
//	a gRPC client   grpclayer.NewClient(tap.Layer(reg, grpclayer.GRPC{}, tap.Outbound)).DialOptions()
//	connections     tap.Connections(reg)(service)
//
// Use [Serve] in a process without a gRPC server, and [NewServer] otherwise.
//
// # Events
//
// A request without a response causes a RequestInit and a ResponseEnd. The RequestInit is sent at once,
// because requests that hang must be visible. A rejection ([layer.ErrNotReady]) carries the reset code 7,
// HTTP/2's REFUSED_STREAM. A gRPC call that fails with a status from the server gets a ResponseInit as well.
// A gRPC call's bytes are counted without compression. Connections are shown only by gotower's own service,
// see [Connections]. A [Joiner] tells you which events belong to the same request.
//
// # Rows of Top
//
// A row of [Registry.Top] counts requests with the same client, endpoint, direction, method and path. An
// endpoint is identified by the value of its label pod, or else by its address and port, and a client by
// its label or address. Paths and names are cut to 256 bytes.
//
// If an http.ServeMux below an inbound layer, or above an outbound one, has routed a request, its path
// is that in the pattern, "/users/{id}". The pattern of a subtree, "/users/", does not count. A mux below
// is known when the response starts, so that an open request counts by its own path.
//
// If TopRequest.ByRoute is set, the route replaces method and path: the label route of
// [layer.WithRoute], or else the pattern, or else the method of gRPC. If TopRequest.ByDestination is set,
// the requests of a row have only the same endpoint and direction.
//
// There are at most 1000 rows. Requests that would need another row count in a row of their direction
// with the path or route "(other)". A row without open requests is removed ten minutes after its last
// request, or after one minute while there are 1000 rows.
//
// # Cost
//
// Every watcher's buffer holds 400 events and 768 KiB of text, bodies and explanations. Events that do not
// fit are dropped and counted. Other watchers still get them. If a RequestInit does not fit, the request is
// not shown at all and counts as one dropped event.
//
// # Secrets
//
// Header values are sent only to watchers that request them. Values in secret fields are replaced and cannot
// be matched. A field is secret if its name contains a word such as auth, authorization, cookie, key, token,
// secret, password, credential, session, signature, jwt, csrf, otp or pin, as in X-Api-Key and X_Auth. It is
// not if the last word describes the secret, as in Token-Type. To show such a field, use [WithRevealed], for
// example WithRevealed("Idempotency-Key"). To hide more fields, use [WithRedacted].
//
// User information in a URI is never shown. Queries and fragments are replaced in :path, Location, Link,
// Referer, Refresh and other fields whose name ends with URI, URL or path. In all other fields, the values
// in pairs such as token=a are replaced. WithRevealed("query") shows them, except the values of parameters
// with secret names. The path in a [RequestInit] never contains a query. Bodies are shown only through
// [WithBodies]' function. Explanations are shown with the request's secrets replaced.
package tap
