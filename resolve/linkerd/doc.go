// Package linkerd resolves names with a linkerd destination controller. It uses the streaming call
// Destination.Get of linkerd2-proxy-api.
//
//	New(conn) ── Get{path: "web.default.svc.cluster.local:80"} ──▶ controller
//	   ▲                                                              │
//	   └── Replace, then Add, Remove, Empty, DoesNotExist ◀───────────┘
//	       stream lost: keep the set, back off, Get again, Replace
//
// # The connection
//
// You own the connection and may use it for other clients of the controller too. Its credentials
// identify the client. Three settings matter:
//
//   - grpc.WithConnectParams: set a MaxDelay of at most [WithBackoff]'s Max, because gRPC's default
//     backoff grows to 120 s, and streams fail at once during it.
//   - grpc.MaxCallRecvMsgSize: the default of 4 MB allows an Add with about ten thousand endpoints.
//   - grpc.WithKeepaliveParams is not needed, because [WithStreamLimits] detects a controller that
//     does not answer.
//
// # Silence
//
// linkerd's controller sends nothing for a Service without endpoints. Therefore a silent stream is
// healthy if the controller answers. After 1 s of silence the resolver sends a gRPC health check on
// the connection. Any answer counts, including Unimplemented:
//
//   - If the controller does not answer within the initial limit of [WithStreamLimits], the stream
//     fails, and the last set stays.
//   - If the stream's server answers, the resolver yields Empty 10 s after the stream was opened.
//   - If another server behind the connection answers, the stream and the last set stay. Further
//     health checks follow after a backoff.
//
// # Zones
//
// An endpoint's Locality is its label "zone". The Priority is 0 for all, because the controller sends
// only the endpoints for the client's zone if the Service has topology hints. It expresses a
// preference for the zone by Endpoint.Weight.
//
// # Outages
//
// The last set stays while the controller is not available. A restarted controller may first report an
// empty set; to delay it, wrap the resolver in resolve.ServeStale. [WithStreamLimits] reopens each
// stream at intervals, which repairs a set that the controller failed to update.
//
// # Errors
//
// The codes InvalidArgument and FailedPrecondition mean that the target is not a service name. They
// become the final error resolve.ErrUnresolvable. After another status, including NotFound and OK, the
// resolver calls Get again.
package linkerd
