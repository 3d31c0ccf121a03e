// Package httplayer connects HTTP with package layer, for servers and for clients. A
// [Server] receives requests. [Handler] and [RoundTripper] adapt a [Service]. An [Endpoint]
// is a Service for a single address. Layers between them access messages only by [Accessor]
// and [Completion].
//
//	client → Server → Handler ─┐
//	                           ├→ Service → layers → Endpoint → server
//	http.Client → RoundTripper ┘
//
// The messages are those of net/http. Server and Endpoint use an HTTP/1.1 and HTTP/2 engine
// that is made for proxies. [Handler] and [Middleware] also run in any other server.
// [Transport] puts layers in front of any [http.RoundTripper].
//
// # Requests and responses
//
// A request passes through a stack as *http.Request and is never modified. An Endpoint
// sends a shallow copy with the context of Call. The service that admits a request closes
// its body. A rejection is an error that matches [layer.ErrNotReady]. It leaves the body
// open and unread. A response, and the context of its request, must live until the body is
// closed. Unlike [http.Transport], an Endpoint adds neither User-Agent nor Accept-Encoding,
// does not decompress responses, and ignores the deprecated field Cancel of a request.
//
// # Strictness
//
// Each message is parsed, serialized again, and checked on output. The received bytes of
// headers are never forwarded. A [Server] rejects HTTP/1.1 requests that violate RFC 9112
// with 400. Examples are a bare CR or LF, folded lines, space before a colon, a missing or
// repeated Host, and several Content-Length fields. Content-Length together with
// Transfer-Encoding, and any transfer coding other than chunked, are rejected, too. Headers
// that are larger than the limit are rejected with 431. The authority of an absolute target
// takes precedence over Host. In HTTP/2 a malformed request (RFC 9113, section 8.1.1) is
// reset with PROTOCOL_ERROR. An [Endpoint] treats malformed responses as failures.
//
// # Connections
//
// An Endpoint has a pool of HTTP/1.1 connections and one HTTP/2 connection.
//
// Protocol: without [WithHTTP1], [WithHTTP2] or [WithKeepVersion], gRPC uses HTTP/2, and
// CONNECT and upgrades use HTTP/1.1. A request that was received over HTTP/2 uses HTTP/2 if
// the connection uses TLS or the request is of gRPC-Web or Connect. All other requests use
// HTTP/1.1. If the server does not support HTTP/2, requests other than gRPC use HTTP/1.1
// until a connection fails.
//
// Cleartext: an Endpoint without [WithTLS] rejects requests with an https URL; see
// [WithCleartextHTTPS].
//
// Forms: a received HTTP/1 request with an absolute target is sent with that target. A
// received HTTP/1.0 request is sent with the version 1.0.
//
// Tunnels: the body of a 101 response, and of a 2xx response to CONNECT, is an
// [io.ReadWriteCloser] with a CloseWrite. A tunnel or an upgraded connection is in flight
// until it is closed or its context ends.
//
// Age: with [WithMaxConnAge], the first request that finds a connection too old still uses it.
// An HTTP/1.1 connection is then closed. For an HTTP/2 connection, this request starts a
// replacement in the background. The old connection then finishes its streams and closes.
// If the replacement cannot be made, the old connection stays in use.
//
// # Errors
//
// [Handler] and [Middleware] answer errors in HTTP or gRPC with the status of
// [StatusFromError], which follows linkerd's proxy. A [StatusError] specifies its own
// status.
//
// # Retries
//
// [Replayer] specifies which requests retries and hedges may send again, with which body,
// and when. [Classify] returns the class of a response. [NewStack] passes both to the
// layers of a stack.
//
// # Panics
//
// See "Panics" in package layer. A panic of a handler aborts the response and is logged. A
// panic of a dial function or TLS callback is a failed connection. A panic of a body is an
// error of that body. All these errors are a [layer.PanicError].
//
// # Example stacks
//
// Three examples run and print their layers: a client, a gateway and a server.
package httplayer
