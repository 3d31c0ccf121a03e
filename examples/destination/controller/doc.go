// Package controller is a destination and policy controller. It serves linkerd's
// destination API: the endpoints of a name (Destination.Get) and its profile
// (Destination.GetProfile). It also serves linkerd's policy APIs: the outbound policy of a
// name or address (OutboundPolicies) and the inbound policy of a port
// (InboundServerPolicies).
//
// The controller has one state, which [Controller.Set] replaces as a whole. Each stream gets
// the changes of the name that it requested:
//
//	YAML file ── Load ───┐
//	                     ├─→ Set ─→ state ─→ differences ─→ queue per stream ─→ Get, Watch, ...
//	program ─────────────┘
//
// For a large configuration, use a [Source] instead of the state. The controller looks up
// only the names and ports that have streams. It looks them up again only after
// [Controller.Changed].
//
// # Streams
//
// Before the first [Controller.Set], streams wait. After that a Get stream starts with all
// endpoints (an add, or no_endpoints), followed by adds and removes. A GetProfile stream
// gets the whole profile at the start and after each change.
//
//   - A name that is not configured does not exist: no_endpoints{exists:false},
//     and the stream stays open, so that the name may appear later. Clients
//     would not retry after InvalidArgument.
//   - The profile of a name that is not configured is empty. A configured
//     destination without a profile has a profile with only its name.
//   - Get of an IP address, and a path that is not host[:port], end with
//     InvalidArgument. The default port is 80. Names are compared
//     case-insensitively and without a trailing dot. The scheme and the context token are
//     ignored.
//   - If a client is more than a hundred messages behind, its stream ends with
//     ResourceExhausted. The client reconnects and starts from the whole set.
//   - A Watch of a target without a policy ends with NotFound: at once, or when the policy
//     is removed. A WatchPort always has a policy. Both get the whole policy at the start
//     and after each change.
//   - [Controller.Stop] ends every stream with Unavailable.
//
// A stream that ends with ResourceExhausted or Unavailable ends at once, even if its client
// does not read. The client receives the status after the messages in flight.
//
// # The file
//
// See [Parse] for the rules and destination.yaml beside the command for an
// example with every field.
package controller
