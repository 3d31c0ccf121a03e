// Package controller is a destination controller: it tells proxies and clients
// where a name is served (Destination.Get) and how its requests are to be
// treated (Destination.GetProfile), by linkerd's destination API.
//
// It holds one state, which is replaced as a whole. Every stream gets what
// changed for its name:
//
//	YAML file ── Load ───┐
//	                     ├─→ Set ─→ state ─→ differences ─→ a queue a stream ─→ Get, GetProfile
//	program ─────────────┘
//
// # What a stream is told
//
// Before the first [Controller.Set] nothing is known, and streams wait. After
// that a Get stream starts with everything there is (an add, or no_endpoints)
// and goes on with adds and removes. A GetProfile stream gets a whole profile
// at the start and at every change of it.
//
//   - A name that is not configured does not exist: no_endpoints{exists:false},
//     and the stream stays open, so that the name may appear later. An
//     InvalidArgument would be final to clients.
//   - The profile of a name that is not configured is empty. A configured
//     destination without a profile has one that only says its name.
//   - Get of an IP address, and a path that is no host[:port], end with
//     InvalidArgument. The default port is 80. Names are compared without
//     regard to case and to a trailing dot. The scheme and the context token
//     are ignored.
//   - A stream whose client is more than a hundred messages behind ends with
//     ResourceExhausted. The client reconnects and starts from the whole set.
//   - [Controller.Stop] ends every stream with Unavailable.
//
// Both hold for clients that do not read, too: their streams are let go of at
// once, and they find the status behind what was on its way to them.
//
// # The file
//
// See [Parse] for the rules and destination.yaml beside the command for an
// example with every field.
package controller
