// Package reliability attacks the proxy, restarts it and what it depends on, and
// measures what that costs. It has tests alone; README.md has the tables.
//
// The whole proxy is a process of its own, and so are its attackers:
//
//	attacker ──▶ ┌───────┐ ──▶ upstreams, which are restarted, come and go
//	load     ──▶ │ proxy │
//	             └───────┘ ──▶ controller, which goes away
//
// Its front is attacked in this process, where all can be counted:
//
//	attacker ──▶ tcplayer.Serve ─▶ Detect ─▶ httplayer.Server ─▶ Handler ─▶ Limit ─▶ Endpoint ──▶ upstream
//	good     ──▶        (the town that newTown builds, all of it on real sockets)                 counts
//
// Each test prints its figure by t.Log. Those that take longer than a few seconds
// have a short form, which is what runs unless GOTOWER_TESTS is "full".
package reliability
