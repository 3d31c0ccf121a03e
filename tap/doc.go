// Package tap shows live requests to whoever may watch, without slowing one.
//
//	request ─▶ balance ─▶ limit ─▶ tap ─▶ endpoint
//	                                │
//	                                ▼ events, never waited for
//	                             Registry ─▶ Server ─▶ gRPC ─▶ Observe
//
// A [Layer] stands at each endpoint, below the balancer and below what limits
// and breaks, so that it knows where a request goes, and sees one request for
// each attempt. It asks its [Registry] who watches: with nobody, that is one
// atomic load. Somebody who watches gave a condition; a request that meets it
// is told of in three events, a [RequestInit] before it is forwarded, a
// [ResponseInit] and a [ResponseEnd].
//
// A [Server] lets others watch over gRPC: it speaks linkerd's
// io.linkerd.proxy.tap.Tap. [Observe] is the client of any process that does;
// package match writes the conditions.
//
// # What a watcher sees
//
// A request that has no response, because it was refused or because it failed,
// shows a RequestInit and a ResponseEnd. The init goes out before anybody
// knows: a request that hangs is the one that people look for. A refusal
// ([layer.ErrNotReady], the request is untouched and may have been sent
// elsewhere) is told apart by reset code 7, which is HTTP/2's REFUSED_STREAM
// and means just that.
//
// # What a watcher costs
//
// Every watcher has a buffer of 400 events and 768 KiB of text. What does not
// fit is dropped and counted, for this watcher alone. A request whose
// RequestInit does not fit is not tapped at all, though it counts toward the
// limit of the watcher.
//
// # Secrets
//
// Header fields are sent only to who asked for them. The values of
// Authorization, Cookie, Proxy-Authorization and Set-Cookie are replaced,
// unless the registry was told to [Reveal] them.
package tap
