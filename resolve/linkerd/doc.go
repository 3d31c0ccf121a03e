// Package linkerd resolves names with a linkerd destination controller: the streaming
// call Destination.Get of linkerd2-proxy-api.
//
//	New(conn) ── Get{path: "web.default.svc.cluster.local:80"} ──▶ controller
//	   ▲                                                              │
//	   └── Replace, then Add, Remove, Empty, DoesNotExist ◀───────────┘
//	       stream lost: keep the set, back off, Get again, Replace
//
// # The connection
//
// The caller owns the connection and may share it with other clients of the controller.
// Its credentials identify the client. Three settings matter:
//
//   - grpc.WithConnectParams: set a MaxDelay of at most the Max of [WithBackoff],
//     because gRPC's own backoff grows to 120 s and streams fail at once meanwhile.
//   - grpc.MaxCallRecvMsgSize: the limit of 4 MB holds an Add of about ten thousand
//     endpoints.
//   - grpc.WithKeepaliveParams is not needed, because [WithStreamLimits] find a
//     controller that does not answer.
//
// # Silence
//
// linkerd's controller sends nothing for a Service without endpoints. So a silent stream
// is healthy if the controller answers. After 1 s of silence the resolver sends a gRPC
// health check on the connection. Any answer counts, including Unimplemented:
//
//   - No answer within Limits.Initial: the stream fails, and the last set stays.
//   - An answer of the server of the stream: 10 s after the stream was opened the
//     resolver yields Empty.
//   - An answer of another server behind the same connection: the stream and the last
//     set stay. Further health checks follow with a backoff.
//
// # Outages
//
// The last set stays while the controller is away. Wrap the resolver in
// resolve.ServeStale to hold back an empty set after an outage. [WithStreamLimits] reopen
// each stream now and then, which corrects lost messages.
//
// # Errors
//
// The codes InvalidArgument and FailedPrecondition mean that the target is not a name of
// a service: the final error resolve.ErrUnresolvable. After another status, including
// NotFound, and after the clean end of a stream, the resolver calls Get again.
package linkerd
