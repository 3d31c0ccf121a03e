// Package reliability contains tests that attack the proxy, and that restart it and the servers it
// uses. They measure the effects. README.md contains the results.
//
// In some tests, the proxy and its attackers are processes:
//
//	attacker ──▶ ┌───────┐ ──▶ upstreams, which restart, join and leave
//	load     ──▶ │ proxy │
//	             └───────┘ ──▶ controller, which fails and returns
//
// In others, the proxy's server runs in the test's process, so that goroutines, connections and
// memory can be counted:
//
//	attacker ──▶ tcplayer.Serve ─▶ Detect ─▶ httplayer.Server ─▶ Handler ─▶ Limit ─▶ Endpoint ──▶ upstream
//	good     ──▶        (newTestProxy builds all of it on real sockets)                   counts
//
// Each test logs its figures with t.Log. A test that takes longer than a few seconds has a short
// form. GOTOWER_TESTS=full selects the long form.
package reliability
