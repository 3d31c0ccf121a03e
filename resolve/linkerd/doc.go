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
// The caller owns the connection and may share it with other clients of the
// controller. All targets are streams of it. Its credentials identify the client.
// Three settings of it matter:
//
//   - grpc.WithConnectParams: gRPC's own backoff between dials grows to 120 s, and
//     a stream that is opened meanwhile fails at once. Set a MaxDelay of at most the
//     Max of [WithBackoff].
//   - grpc.MaxCallRecvMsgSize: gRPC's limit of 4 MB holds an Add of about ten
//     thousand endpoints. A larger one is rejected each time.
//   - grpc.WithKeepaliveParams is not needed, because [WithStreamLimits] find a
//     controller that does not answer. Controllers close connections whose Time is
//     less than 5 min.
//
// # Silence
//
// linkerd's controller sends nothing for a Service without endpoints. A silent
// stream is therefore healthy if the controller answers, and it stays open for the
// first endpoint. After 1 s of silence the resolver sends a gRPC health check on the
// connection. Any answer counts, including Unimplemented:
//
//   - No answer within Limits.Initial: the stream fails, and the known set stays.
//   - An answer of the server of the stream: 10 s after the stream was opened the
//     service counts as empty, and the resolver yields Empty. The endpoints that were
//     known from an earlier stream are gone then.
//   - An answer of another server behind the same connection: the stream stays open,
//     and the known set stays. Further health checks follow with a backoff.
//
// # Outages
//
// The known set stays in force while the controller is away or sends nothing that
// can be read. See the section of that name in package resolve, and wrap the
// resolver in resolve.ServeStale, which holds an empty set after an outage back
// for a further 30 s. [WithStreamLimits] reopen each stream now and then, which repairs
// the effect of lost messages.
//
// # Errors
//
// The codes InvalidArgument and FailedPrecondition mean that the target is not the
// name of a service. That is final, and matches resolve.ErrUnresolvable. After any
// other status, and after the clean end of a stream, the resolver asks again and the
// known set stays. That includes NotFound, the status of a service that the
// controller does not know yet.
package linkerd
