// Package httplayer connects HTTP with package layer, on both sides. A [Server]
// receives requests, [Handler] and [RoundTripper] adapt a [Service], and
// [Endpoint] is a Service for a single address. Layers between them know HTTP
// only through [Accessor] and [Completion].
//
//	client → Server → Handler ─┐
//	                           ├→ Service → layers → Endpoint → server
//	http.Client → RoundTripper ┘
//
// Messages are those of net/http. Server and Endpoint have their own HTTP/1.1
// and HTTP/2 engine, which is made for proxies. [Handler] and [Middleware] run in
// any other server, too, and [Transport] puts layers over any
// [http.RoundTripper].
//
// # Requests and responses
//
// A request passes through a stack as *http.Request and is never modified. An
// Endpoint sends a shallow copy with the context of Call. The service that
// admits a request closes its body. A rejection (an error that matches
// [layer.ErrNotReady]) leaves it open and unread. A response, and the context
// of its request, must live until the body is closed.
//
// # Strictness
//
// Each message is parsed, serialized again, and checked on output. Nothing is
// forwarded as it was received. A [Server] rejects HTTP/1.1 requests that
// violate RFC 9112 with 400: a bare CR or LF, folded lines, space before a colon,
// no or two Host fields, several Content-Length fields, a Content-Length beside
// Transfer-Encoding, and any transfer coding but chunked. Headers over the limit
// get 431. The authority of an absolute target takes precedence over Host. In
// HTTP/2 a malformed request (RFC 9113, section 8.1.1) is reset with
// PROTOCOL_ERROR. An [Endpoint] treats malformed responses as failures.
//
// # Connections
//
// An Endpoint has a pool of HTTP/1.1 connections and one HTTP/2 connection.
//
// Protocol: without [WithHTTP1], [WithHTTP2] or [KeepVersion], gRPC uses HTTP/2,
// and CONNECT and upgrades use HTTP/1.1. A request that was received by HTTP/2
// uses HTTP/2 if the connection uses TLS or the request is of the Connect
// protocol. All other requests use HTTP/1.1. If the server turns out not to speak
// HTTP/2, requests other than gRPC use HTTP/1.1 until it does.
//
// Cleartext: an Endpoint without [WithTLS] rejects requests whose URL is https;
// see [WithCleartextHTTPS].
//
// Forms: a received HTTP/1 request keeps an absolute target and version 1.0.
//
// Tunnels: the body of a 101 response, and of a 2xx response to CONNECT, is an
// [io.ReadWriteCloser] with a CloseWrite. Tunnels and upgraded connections are in
// flight until they are closed or their context ends.
//
// Age: with [WithMaxConnAge], an HTTP/1.1 connection that is too old is closed
// when it is idle. The first request that finds an HTTP/2 connection too old
// still uses it and starts a replacement in the background. The old connection
// then finishes its streams and closes. If no replacement can be made, the old
// connection stays in use.
//
// # Errors
//
// [Handler] and [Middleware] answer errors in HTTP or gRPC with the status of
// [StatusFromError], which follows linkerd's proxy. A [StatusError] chooses its
// own status.
//
// # Retries
//
// [Replayer] tells retries and hedges which requests may be sent again, with
// which body, and when. [Classify] gives the meaning of a response. [NewStack]
// passes both to the layers of a stack.
//
// # Panics
//
// See "Panics" in package layer. A panic of a handler aborts the response and is
// logged. A panic of a dial function or TLS callback is a failed connection. A
// panic of a body is an error of that body. All are a [layer.PanicError].
//
// # Example stacks
//
// Three examples run and print their layers: a client, a gateway and a server.
package httplayer
