// Package controller is a destination and policy controller. Proxies ask it where a name's
// servers are and what they should do with requests. It serves linkerd's destination API, with a
// name's endpoints (Destination.Get) and profile (Destination.GetProfile), and linkerd's policy
// APIs, with outbound policies for names and addresses (OutboundPolicies) and inbound policies
// for ports (InboundServerPolicies).
//
// [Controller.Set] replaces the whole configuration at once. Each stream receives only what
// changed for the name that it requested:
//
//	YAML file ── Load ───┐
//	                     ├─→ Set ─→ state ─→ differences ─→ queue per stream ─→ Get, Watch, ...
//	program ─────────────┘
//
// A large configuration, such as a whole cluster's, should be a [Source] instead. The controller
// then looks up only names and ports that clients ask for, and does so again only after
// [Controller.Changed].
//
// # Streams
//
// Streams wait for the first [Controller.Set]. A Get stream then starts with all endpoints (an
// add, or no_endpoints), and continues with adds and removes. A GetProfile stream gets the whole
// profile at the start and after each change.
//
//   - A name that is not configured does not exist: no_endpoints{exists:false},
//     and the stream stays open, so that the name may appear later. Clients
//     would not retry after InvalidArgument.
//   - A name that is not configured gets an empty profile. A configured
//     destination without a profile gets one with just its name.
//   - Get for an IP address, or for a path that is not host[:port], ends with
//     InvalidArgument. The default port is 80. Names are compared
//     case-insensitively and without a trailing dot. The scheme and the context token are
//     ignored.
//   - If a client is more than a hundred messages behind, its stream ends with
//     ResourceExhausted. The client reconnects and starts from the whole set.
//   - A Watch for a target without a policy ends with NotFound: immediately, or when the policy
//     is removed. A WatchPort always finds a policy. Both get the whole policy at the start
//     and after each change.
//   - [Controller.Stop] ends every stream with Unavailable.
//
// ResourceExhausted and Unavailable end a stream immediately, even if its client does not read.
// The client receives the status after the messages that are already in flight.
//
// # The file
//
// See [Parse] for the rules, and destination.yaml next to the command for an example that uses
// every field.
package controller
