package reliability

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRapidReset with the attacker, the proxy and the good clients in separate processes, to
// measure the effect on the clients.
func TestRapidResetFromOutside(t *testing.T) {
	whole(t)
	var held holder
	up := newUpstream(t, &held)
	p := startProxy(t, newPlane(t, up.addr).addr)
	clients := []*http.Client{through(t, p.addr, false), through(t, p.addr, true)}
	g := offer(t, 200, func(ctx context.Context, i int) error { return get(ctx, clients[i%2], "http://web.test/") })
	g.more(t, size(100, 1000))
	before, quiet := p.measure(t), g.p99(fine, 0)
	n := g.count(fine)
	apart(t, "reset", p.addr, size(20_000, 2_000_000))
	during := g.p99(fine, n)
	after := p.measure(t)
	g.more(t, 50)
	n = g.count(fine)
	apart(t, "count", "", size(200, 1500))
	counted := g.p99(fine, n)
	g.end()
	t.Logf("good traffic: p99 %v before, %v during the attack, %v while a process only counts; %v", quiet, during, counted, g)
	t.Logf("proxy before: %v; after: %v; upstream: %d held, %d at once at most", before, after, held.started.Load(), held.peak.Load())
	assert.Empty(t, g.bad())
	assert.LessOrEqual(t, held.peak.Load(), int64(attackers*maxStreams))
	// A busy machine has more good requests in progress, each on its own connection.
	good := float64(max(0, after.fds-before.fds)) / 16
	assert.Less(t, after.rss-before.rss, 32+good)
}
