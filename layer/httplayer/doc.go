// Package httplayer is net/http both ways: an [http.Handler] and an
// [http.RoundTripper] made of a [Service], and an [Endpoint] that is one, the
// client of a single address. Between them stand the layers of package layer,
// which know nothing of HTTP but what [Accessor] and [Completion] tell them.
//
//	net/http server → Handler ─┐
//	                           ├→ Service → layers → Endpoint → net/http connection
//	http.Client → RoundTripper ┘
//
// [Middleware] puts layers in front of a mux, in the same process.
//
// # Requests and responses
//
// A request goes through a stack as *http.Request and is never changed on the
// way: an Endpoint sends a shallow copy that is bound to the context of Call.
// Whoever admits a request closes its body; a refusal (an error that matches
// [layer.ErrNotReady]) leaves it open and unread. A response lives until its
// body was closed, and so must the context it was asked for with.
//
// # Connections
//
// An Endpoint stands on [http.Transport.NewClientConn]: a pool of HTTP/1.1
// connections, and one HTTP/2 connection. It never sends a request twice. A
// connection that turns out dead before a byte of the request was written is
// replaced without a word; any later failure is the caller's to judge. What
// can be proven, and what cannot, is said at [Endpoint]. Where an address stands
// for many servers, [WithMaxConnAge] has connections made anew now and then.
//
// # Errors
//
// [Handler] and [Middleware] answer in HTTP, or in gRPC, with the status that
// [StatusFromError] gives an error. They are those of linkerd's proxy. A [StatusError]
// chooses its own.
//
// # Sending again
//
// What retries and hedges ask of HTTP, [Replayer] answers: which requests may be
// sent again, with which body, and when. [Classify] says what a response means.
// [NewStack] gives both to the layers of a stack.
//
// # Panics
//
// The rule of package layer holds: see "Panics" there. A panic of a handler is that
// of net/http. One of a dial function or a TLS callback is a failure to connect, and
// one of a request body, or of a body that Peek reads, is the error of that body. All
// are a [layer.PanicError]. The methods of a net.Conn that is given to this package
// must not panic, because net/http calls them on its own goroutines.
//
// # Stacks to begin with
//
// Three examples run, and print their trees: that of a client, of a gateway and
// of a server.
package httplayer
