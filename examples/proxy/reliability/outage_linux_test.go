package reliability

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Row 10: the controller is away for a minute. What is known is served, also
// what was idle and let go; what is not fails within the time to fail fast; and
// news arrive when it is back.
func TestControllerOutage(t *testing.T) {
	whole(t)
	up, next := newUpstream(t, nil), newUpstream(t, nil)
	pl := newPlane(t, up.addr)
	const quiet, unknown = "quiet.test:80", "unknown.test:80"
	pl.cfg.Destinations[quiet] = pl.cfg.Destinations[webName]
	require.NoError(t, pl.Set(pl.cfg))
	p := startProxy(t, pl.addr, "LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT=500ms",
		fmt.Sprintf("LINKERD2_PROXY_OUTBOUND_HTTP_FAILFAST_TIMEOUT=%ds", size(2, 10)),
		"LINKERD2_PROXY_CONTROL_CONNECT_EXP_BACKOFF_MIN=100ms",
		fmt.Sprintf("LINKERD2_PROXY_CONTROL_CONNECT_EXP_BACKOFF_MAX=%ds", size(1, 10)))
	clients := []*http.Client{through(t, p.addr, false), through(t, p.addr, true)}
	require.NoError(t, get(t.Context(), clients[0], "http://"+quiet+"/"))
	g := offer(t, 100, func(ctx context.Context, i int) error { return get(ctx, clients[i%2], "http://web.test/") })
	g.more(t, 100)

	pl.stop()
	away, gaps := time.Now(), size(2, 12)
	for range gaps { // each is longer than a target is kept without requests
		g.more(t, size(100, 500))
		assert.NoError(t, get(t.Context(), clients[1], "http://"+quiet+"/"))
	}
	start := time.Now()
	err := get(t.Context(), clients[0], "http://"+unknown+"/")
	refused := time.Since(start)
	require.Error(t, err)
	assert.Contains(t, err.Error(), "504 ")
	attempts, lasted := p.said.times("no connection to the control plane"), time.Since(away)

	pl.cfg = served(webName, "", next.addr)
	pl.start(t)
	back := time.Now()
	require.Eventually(t, func() bool { return next.requests.Load() > 0 }, 2*patience, time.Millisecond)
	news := time.Since(back)
	g.more(t, 50)
	g.end()
	t.Logf("away for %v: %v; attempts to connect to the controller: %d", lasted.Round(time.Millisecond), g, attempts)
	t.Logf("a target that is not known: %v after %v; news %v after the controller was back",
		err, refused.Round(time.Millisecond), news.Round(time.Millisecond))
	assert.Empty(t, g.bad())
	assert.Less(t, attempts, 20+int(lasted.Seconds()))
}
