// Package httplayer connects net/http with package layer, on both sides.
// [Handler] and [RoundTripper] adapt a [Service]; [Endpoint] is a Service for a
// single address. Layers between them know HTTP only through [Accessor] and
// [Completion].
//
//	net/http server → Handler ─┐
//	                           ├→ Service → layers → Endpoint → net/http connection
//	http.Client → RoundTripper ┘
//
// [Middleware] puts layers in front of a mux in the same process.
//
// # Requests and responses
//
// A request passes through a stack as *http.Request and is never modified. An
// Endpoint sends a shallow copy with the context of Call. The service that
// admits a request closes its body. A rejection (an error that matches
// [layer.ErrNotReady]) leaves it open and unread. A response, and the context
// of its request, must live until the body is closed.
//
// # Connections
//
// An Endpoint uses [http.Transport.NewClientConn]: a pool of HTTP/1.1
// connections and one HTTP/2 connection.
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
// These have their own connections.
//
// Tunnels: CONNECT uses a new HTTP/1.1 connection. The body of a 2xx response is
// an [io.ReadWriteCloser] with a CloseWrite. Tunnels and upgraded connections are
// in flight until they are closed or their context ends.
//
// Age: with [WithMaxConnAge], the first request that finds a connection too old
// still uses it and starts a successor in the background. Once that is connected,
// the old connection finishes its requests and closes. If it cannot be made, the
// old connection stays in use. No request waits or fails because of it.
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
// See "Panics" in package layer. net/http handles the panic of a handler. A
// panic of a dial function or TLS callback is a failed connection. A panic of a
// body is an error of that body. All are a [layer.PanicError]. Methods of a
// net.Conn given to this package must not panic, because net/http calls them on
// its own goroutines.
//
// # Example stacks
//
// Three examples run and print their layers: a client, a gateway and a server.
package httplayer
