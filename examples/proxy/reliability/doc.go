// Package reliability attacks the front of the proxy, and measures what that
// costs. It has tests alone; README.md has the table.
//
//	attacker ──▶ tcplayer.Serve ─▶ Detect ─▶ httplayer.Server ─▶ Handler ─▶ Limit ─▶ Endpoint ──▶ upstream
//	good     ──▶        (the town that newTown builds, all of it on real sockets)                 counts
//
// Each test prints its figure by t.Log. Those that take longer than a few seconds
// have a short form, which is what runs unless GOTOWER_RELIABILITY is "full".
package reliability
