// Package linkerd gets profiles from linkerd's destination controller, or from another
// server of the streaming call Destination.GetProfile of linkerd2-proxy-api.
//
//	New(conn) ── GetProfile{path: "web.default.svc.cluster.local:80"} ──▶ controller
//	   ▲                                                                     │
//	   └── a whole Profile with each message ◀───────────────────────────────┘
//	       stream lost: an error, a backoff, GetProfile again
//	       InvalidArgument, FailedPrecondition: profiles.ErrNoProfile, the end
//
// The caller owns the connection and may use it for other calls. Each watch of a target is one
// stream on the connection. The connection determines how soon gRPC dials again
// (grpc.WithConnectParams). A stream that is opened between two dials fails at once.
//
// Each stream has time limits, which detect a controller that does not answer. See
// [WithStreamLimits].
//
// Invalid parts of a message are logged and left out. The references parent_ref,
// profile_ref, backend_ref and resource_ref are ignored, as in linkerd's proxy.
//
// [NewPolicies] gets client policies from linkerd's policy controller, as profiles with the routes
// of the Gateway API. [Prefer] selects between the profile and the policy of a target.
package linkerd
