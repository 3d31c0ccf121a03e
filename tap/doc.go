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
// A [Server] lets others watch over gRPC. It speaks linkerd's
// io.linkerd.proxy.tap.Tap, and [Observe] is the client of any process that
// does; package match writes the conditions. It also serves a service of
// gotower's own, of package tappb, with more to ask for: conditions on header fields
// and on the response, a share of the requests, a time, bodies, and how a
// request was routed and balanced (see [Explain]). [Watch] is its client, and
// [Registry.Watch] is the same in the process.
//
// One line puts a tap into a program that has nothing else of this module:
//
//	a handler       httplayer.Middleware(tap.Layer(reg, httplayer.Accessor{}, tap.Inbound))(handler)
//	an http.Client  httplayer.Transport(tap.Layer(reg, httplayer.Accessor{}, tap.Outbound), client.Transport)
//	a gRPC server   grpclayer.NewServer(tap.Layer(reg, grpclayer.Accessor{}, tap.Inbound)).ServerOptions()
//	a gRPC client   grpclayer.NewClient(tap.Layer(reg, grpclayer.Accessor{}, tap.Outbound)).DialOptions()
//	connections     tap.Connections(reg)(service), tap.Accepted(reg)(server)
//
// and [Serve] serves who watches, where there is no gRPC server for [NewServer].
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
// A call of gRPC that fails has a response as well, if the other side gave it
// the status that it failed with. The bytes of gRPC are those of its messages
// without compression. A connection is shown to who watches by gotower's own
// service, see [Connections].
//
// # What a watcher costs
//
// Every watcher has a buffer of 400 events and 768 KiB of text, bodies and
// explanations. What does not fit is dropped and counted, for this watcher
// alone. A request whose RequestInit does not fit is not tapped at all, though
// it counts toward the limit of the watcher, and as one event that was dropped.
// What is kept back until the response is known takes from the same buffer.
//
// A [Server] sends what comes within five milliseconds together, up to sixteen
// events, since a sending costs more than an event; it waits no longer than
// until half of a buffer is taken. A watcher with a rate is shown as many
// requests at once and then one after the other, at instants that differ from
// one watcher to the next: beyond the first, and where there are many more requests
// than are shown, those who watch at the same rate see different ones, and no
// request pays for all of them.
//
// # Secrets
//
// Header fields are sent only to who asked for them. Some values are replaced, and
// cannot be compared with: those of Authorization and Cookie, of fields whose name
// ends in one of them, such as Proxy-Authorization and Set-Cookie, and of fields
// whose name contains key, token, secret, password or credential, such as X-Api-Key.
// To show one, give the registry its name: WithRevealed("Idempotency-Key"), see [WithRevealed].
// To withhold others, see [WithRedacted]. User information in a URI is never shown.
// Its query and its fragment are replaced in :path, Location,
// Content-Location, Referer, Refresh and what proxies call the URI that they got,
// unless it was told to WithRevealed("query"), and are in no path of a [RequestInit].
// Of a query that is shown, parameters with such names are withheld in the same way.
// Bodies are shown only if the registry was given a hook that sees them first,
// see [WithBodies]. What layers say of their choices is shown without what of all
// this is in the request.
package tap
