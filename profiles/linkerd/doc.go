// Package linkerd gets profiles from linkerd's destination controller, or from any other server
// for linkerd2-proxy-api's streaming call Destination.GetProfile.
//
//	New(conn) ── GetProfile{path: "web.default.svc.cluster.local:80"} ──▶ controller
//	   ▲                                                                     │
//	   └── a whole Profile with each message ◀───────────────────────────────┘
//	       stream lost: an error, a backoff, GetProfile again
//	       InvalidArgument, FailedPrecondition: profiles.ErrNoProfile, the end
//
// You own the connection and may use it for other calls. Each watch on a target is one stream on
// it. The connection determines how soon gRPC dials again (grpc.WithConnectParams); a stream that
// is opened between two dials fails at once.
//
// Time limits on each stream detect a controller that does not answer, see [WithStreamLimits].
//
// Invalid parts of a message are logged and left out. The references parent_ref, profile_ref,
// backend_ref and resource_ref are ignored, as in linkerd's proxy.
//
// [NewPolicies] gets client policies from linkerd's policy controller, as profiles with Gateway
// API routes. [Prefer] selects between a target's profile and its policy.
package linkerd
