// Package linkerd has profiles from linkerd's destination controller, or from any
// server of the streaming call Destination.GetProfile of linkerd2-proxy-api.
//
//	New(conn) ── GetProfile{path: "web.default.svc.cluster.local:80"} ──▶ controller
//	   ▲                                                                     │
//	   └── a whole Profile with each message ◀───────────────────────────────┘
//	       stream lost: an error, a backoff, GetProfile again
//	       InvalidArgument, FailedPrecondition: profiles.ErrNoProfile, the end
//
// The caller owns the connection, and may use it for other calls. All targets are
// streams of it. It determines how soon gRPC dials again (grpc.WithConnectParams): a
// stream that is opened between two dials fails at once.
//
// Each stream has time limits, see [WithStreamLimits], which find a controller that
// does not answer.
//
// Invalid parts of a message are logged and left out. As in linkerd's proxy, the
// references parent_ref, profile_ref, backend_ref and resource_ref are ignored.
package linkerd
