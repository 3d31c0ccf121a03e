// Package linkerd resolves names with a linkerd destination controller: the
// streaming call Destination.Get of linkerd2-proxy-api.
//
//	New(conn) ── Get{path: "web.default.svc.cluster.local:80"} ──▶ controller
//	   ▲                                                              │
//	   └── Replace, then Add, Remove, Empty, DoesNotExist ◀───────────┘
//	       stream lost: keep the set, back off, Get again, Replace
//
// # The connection
//
// The caller owns the connection, and shares it with whatever else speaks to
// the controller; all targets are streams of it, and its credentials are what
// the controller knows its client by. Three settings of it matter:
//
//   - grpc.WithKeepaliveParams: without it, a controller that vanishes without
//     closing its connections is not noticed. A Time of less than 5 min is taken
//     amiss by servers that do not allow it, and they break the connection off.
//   - grpc.WithConnectParams: gRPC's own pause between dials grows to 120 s, and
//     an attempt made in it fails at once. A MaxDelay no longer than the Max of
//     [Backoff] brings streams back sooner: after both, at the latest.
//   - grpc.MaxCallRecvMsgSize: gRPC's 4 MB hold an Add of some ten thousand
//     endpoints. A larger one is refused each time, and so never arrives.
//
// # Outages
//
// What is known stays in force while the controller is away, or not itself; see
// the section of that name in package resolve, and wrap the resolver in
// resolve.KeepLastGood. [StreamLimits] finds out a controller that takes
// streams and says nothing, or nothing that can be read, and renews each stream
// now and then, so that what was lost on the way is made up for.
//
// # Errors
//
// The controller says InvalidArgument or FailedPrecondition of what is not the
// name of a service: that is final, and matches resolve.ErrUnresolvable. Every
// other status, and the clean end of a stream, is news; what is known stays in
// force. A service that the controller has not heard of yet is NotFound, and is
// asked for again.
package linkerd
