// Package httplayer connects HTTP with package layer, for servers and for clients. A [Server] passes the
// requests that it receives to a [Service]. An [Endpoint] is a Service for a single address. Layers
// between them access messages only by [HTTP].
//
//	client → Server ───────────┐
//	                           ├→ Service → layers → Endpoint → server
//	http.Client → RoundTripper ┘
//
// The messages are net/http's. Server and Endpoint use an HTTP/1.1 and HTTP/2 engine that is made for
// proxies. Adapters connect a Service with net/http: [Handler] for its server, [FromHandler] for a
// handler such as a mux, [RoundTripper] for its client, and [Transport] for layers in front of any
// [http.RoundTripper].
//
// The response that a client gets is made in one place, above all layers: the status for an error, the
// gRPC status, resets and connection headers. [WithAccessLog], [WithOnResponse] and [WithObserver] see
// that response.
//
// # Requests and responses
//
// A request passes through a stack as *http.Request and is never modified. An Endpoint sends a shallow
// copy with Call's context. The service that admits a request closes its body. A rejection is an error
// that matches [layer.ErrNotReady]; it leaves the body open and unread. A response, and its request
// context, must live until the body is closed. Unlike [http.Transport], an Endpoint adds neither
// User-Agent nor Accept-Encoding, does not decompress responses, and ignores a request's deprecated
// Cancel field.
//
// # Strictness
//
// Each message is parsed, serialized again, and checked on output, so that what is forwarded is strict.
// What nginx, haproxy and linkerd's proxy accept, and what can be read in one way only, is accepted:
// empty lines before a message, a bare LF at the end of a header or trailer line, several spaces between
// the parts of a start line, versions such as HTTP/1.2, UTF-8 in a target, unknown expectations, blanks
// after a chunk size, and chunk extensions. The request target and the response's reason are kept byte
// for byte. Field names are sent in canonical form. From HTTP/1.1 to HTTP/1.1, fields keep their order,
// and those that a layer adds follow.
//
// What can be read in two ways is rejected at once. A [Server] answers an HTTP/1.1 request with 400 if
// it contains a bare CR, a folded line, a space before a colon, a control character, a missing, repeated
// or invalid Host, several Content-Length fields, Content-Length together with Transfer-Encoding, or a
// bare LF after a chunk's size or data. A transfer coding other than chunked is answered with 501, and
// headers that exceed the limit with 431, or 414 if the target does. An incomplete request is answered
// with 408 when its time is over. The authority of an absolute target takes precedence over Host. In
// HTTP/2 a malformed request (RFC 9113, section 8.1.1) is reset with PROTOCOL_ERROR, but an invalid
// authority is answered with 400. An [Endpoint] treats malformed responses as failures, but ignores the
// Content-Length of a chunked one. [WithRefused] reports the rejected requests. MESSAGES.md in this
// package's directory compares these rules with nginx, haproxy and linkerd's proxy, message by message.
//
// # Connections
//
// An Endpoint keeps a pool of HTTP/1.1 connections and one HTTP/2 connection.
//
// Protocol: without [WithHTTP1], [WithHTTP2] or [WithKeepVersion], gRPC uses HTTP/2, and CONNECT and
// upgrades use HTTP/1.1. With TLS, a request that was received over HTTP/2, or was not received at all
// (its RequestURI is empty), uses HTTP/2 if the server selects it by ALPN. Without TLS, a gRPC-Web or
// Connect request that was received over HTTP/2 uses HTTP/2. All other requests use HTTP/1.1. If the
// server does not select HTTP/2, requests other than gRPC use HTTP/1.1 until a connection fails.
//
// Cleartext: an Endpoint without [WithTLS] rejects requests with an https URL; see [WithCleartextHTTPS].
//
// Forms: a received HTTP/1 request with an absolute target is sent with that target. A received HTTP/1.0
// request is sent with the version 1.0.
//
// Repetition: like net/http and gRPC, an Endpoint sends a request again, whatever its method, if the
// server has not processed it: it sent REFUSED_STREAM, or a GOAWAY before the stream, or a connection
// ended before a byte was sent. An idempotent request is also sent again, once, if a reused HTTP/1.1
// connection ended before the response began. To make this possible, up to 64 KiB of a body without
// GetBody are kept until the response arrives. No retry budget is needed for this. If three attempts
// find a server that processes nothing, or no other connection can be made, the request is rejected, so
// that another endpoint can have it. For this, [Handler], [RoundTripper] and [HTTP.Replay] wrap the body,
// so that it is unread again. The request fails instead if its body was read and either is longer than
// what is kept, or a layer between has wrapped it.
//
// Half-closed clients: an HTTP/1.1 client that shuts down its sending side together with its request, or
// within about 100 ms, gets the response, however late it comes. If it does so later, or resets the
// connection, it has left: its request context ends. In HTTP/2, half-closing always means that it has
// left.
//
// Tunnels: the body of a 101 response, and of a 2xx response to CONNECT, is an [io.ReadWriteCloser] that
// supports CloseWrite. A tunnel or an upgraded connection is in flight until it is closed or its context
// ends.
//
// Age: with [WithMaxConnAge], the first request that finds an HTTP/1.1 connection too old still uses it,
// and the connection is closed after it. If an HTTP/2 connection is too old, the request starts a
// replacement in the background and does not wait for it; the old connection then finishes its streams and
// closes. If the replacement cannot be made, the old connection stays in use.
//
// # Errors
//
// A [Server] and a [Handler] answer an error with a status of HTTP or gRPC, which [StatusFromError]
// returns. The first matching row applies, as in linkerd's proxy (app/core/src/errors/respond.rs):
//
//	a [StatusError]                                       its Code and GRPC
//	the client has left                                   499   1 CANCELLED
//	the request body arrived too slowly                   408   4 DEADLINE_EXCEEDED
//	the request body is malformed                         400  13 INTERNAL
//	rejected by a rate limit                              429   8 RESOURCE_EXHAUSTED
//	timeout of a layer, or fail-fast of a queue           504   4 DEADLINE_EXCEEDED
//	rejected: no endpoint is available, or it has ended   503  14 UNAVAILABLE
//	a retry was rejected                                  503  14 UNAVAILABLE
//	timeout while connecting, or of the caller's context  504   4 DEADLINE_EXCEEDED
//	no route                                              404   5 NOT_FOUND
//	canceled by the caller                                502   1 CANCELLED
//	stream reset by the endpoint                          502  the code for the reset
//	the endpoint failed or has the wrong identity         502  14 UNAVAILABLE
//	rejected for any other reason                         503  14 UNAVAILABLE
//	anything else                                         500  13 INTERNAL
//
// The status 499 is not sent, because there is no client. Logs and metrics have it.
//
// # Retries
//
// [HTTP] specifies which requests retries and hedges may send again, with which body, and when. It
// classifies responses with [Classify]. [NewStack] passes it to the layers in a stack.
//
// # Panics
//
// See "Panics" in package layer. If a handler panics, the response is aborted and the panic logged. A
// panic in a dial function or TLS callback is a failed connection, and a panic in a body is a body
// error. All these errors are a [layer.PanicError].
//
// # Example stacks
//
// Three examples run and print their layers: a client, a gateway and a server.
package httplayer
