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

// Row 10: the controller is away for a minute. Requests to targets in use succeed, and those to
// unknown targets fail within the fail-fast timeout. Updates arrive when the controller is back.
func TestControllerOutage(t *testing.T) {
	whole(t)
	up, next := newUpstream(t, nil), newUpstream(t, nil)
	pl := newPlane(t, up.addr)
	const unknown = "unknown.test:80"
	p := startProxy(t, pl.addr,
		fmt.Sprintf("LINKERD2_PROXY_OUTBOUND_HTTP_FAILFAST_TIMEOUT=%ds", size(1, 10)),
		"LINKERD2_PROXY_CONTROL_CONNECT_EXP_BACKOFF_MIN=100ms",
		fmt.Sprintf("LINKERD2_PROXY_CONTROL_CONNECT_EXP_BACKOFF_MAX=%ds", size(1, 10)))
	clients := []*http.Client{through(t, p.addr, false), through(t, p.addr, true)}
	g := offer(t, 100, func(ctx context.Context, i int) error { return get(ctx, clients[i%2], "http://web.test/") })
	g.more(t, size(50, 100))

	pl.stop()
	away := time.Now()
	g.more(t, size(100, 6000))
	start := time.Now()
	err := get(t.Context(), clients[0], "http://"+unknown+"/")
	refused := time.Since(start)
	require.Error(t, err)
	assert.Contains(t, err.Error(), "504 ")
	attempts, lasted := p.journal.times("no connection to the control plane"), time.Since(away)

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
