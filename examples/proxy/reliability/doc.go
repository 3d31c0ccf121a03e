// Package reliability attacks the proxy, restarts the proxy and the servers that it uses,
// and measures the effects. It has tests only; README.md has the results.
//
// The proxy is a process, and so are its attackers:
//
//	attacker ──▶ ┌───────┐ ──▶ upstreams, which restart, join and leave
//	load     ──▶ │ proxy │
//	             └───────┘ ──▶ controller, which fails and returns
//
// The server part of the proxy is attacked in this process, where goroutines, connections
// and memory can be counted:
//
//	attacker ──▶ tcplayer.Serve ─▶ Detect ─▶ httplayer.Server ─▶ Handler ─▶ Limit ─▶ Endpoint ──▶ upstream
//	good     ──▶        (newTown builds all of it on real sockets)                        counts
//
// Each test prints its figure by t.Log. Tests that take longer than a few seconds have a
// short form, which runs unless GOTOWER_TESTS is "full".
package reliability
