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
// the controller; all targets are streams of it. Three settings of it matter:
//
//   - grpc.WithKeepaliveParams: without it, a controller that vanishes without
//     closing its connections is not noticed.
//   - grpc.WithConnectParams: gRPC's own pause between dials grows to 120 s, and
//     an attempt made in it fails at once. A MaxDelay no longer than the Max of
//     [Backoff] brings streams back sooner.
//   - grpc.MaxCallRecvMsgSize: gRPC's 4 MB hold an Add of some ten thousand
//     endpoints. A larger one is refused each time, and so never arrives.
//
// # Errors
//
// The controller says InvalidArgument or FailedPrecondition of what is not the
// name of a service: that is final, and matches resolve.ErrUnresolvable. Every
// other status, and the clean end of a stream, is news; what is known stays in
// force. A service that the controller has not heard of yet is NotFound, and is
// asked for again.
package linkerd
