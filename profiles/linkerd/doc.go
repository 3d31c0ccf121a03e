// Package linkerd has profiles from linkerd's destination controller, or from
// anything that serves the streaming call Destination.GetProfile of
// linkerd2-proxy-api.
//
//	New(conn) ── GetProfile{path: "web.default.svc.cluster.local:80"} ──▶ controller
//	   ▲                                                                     │
//	   └── a whole Profile with each message ◀───────────────────────────────┘
//	       stream lost: news; back off, GetProfile again
//	       InvalidArgument, FailedPrecondition: profiles.ErrNoProfile, the end
//
// The caller owns the connection, and shares it with whatever else speaks to
// the controller; all targets are streams of it. How soon gRPC dials again is
// the connection's own matter (grpc.WithConnectParams): a stream that is opened
// in the pause between two dials fails at once.
//
// Each stream has time limits, see [WithStreamLimits], which find a controller that does
// not answer.
//
// A message can contain invalid parts. Each is ignored and logged, and the rest of
// the message holds. The references parent_ref, profile_ref, backend_ref and
// resource_ref are not read: linkerd's proxy does not read them either, and takes the
// labels of metrics from the names.
package linkerd
