package reliability

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Row 27: an open loop sends twice as many requests as the upstream can serve. The limit is twice
// the number of requests that the upstream serves concurrently.
func TestOverload(t *testing.T) {
	whole(t)
	const slots, service, capacity = 10, 40 * time.Millisecond, 250
	slot := make(chan struct{}, slots)
	up := newUpstream(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		slot <- struct{}{}
		defer func() { <-slot }()
		<-time.After(service)
		_, _ = w.Write([]byte("hello"))
	}))
	p := startProxy(t, newPlane(t, up.addr).addr, "LINKERD2_PROXY_OUTBOUND_MAX_IN_FLIGHT=20")
	clients := []*http.Client{through(t, p.addr, false), through(t, p.addr, true)}
	ask := func(ctx context.Context, i int) error {
		err := get(ctx, clients[i%2], "http://web.test/")
		if err != nil && strings.HasPrefix(err.Error(), "503 ") {
			err = errors.New("503")
		}
		return err
	}
	idle := offer(t, capacity/5, ask)
	idle.more(t, size(25, 50))
	idle.end()

	over, seconds, start := offer(t, 2*capacity, ask), size(2, 60), time.Now()
	require.Eventually(t, func() bool { return over.total() >= 2*capacity*seconds }, 3*time.Minute, time.Millisecond)
	goodput := float64(over.count(fine)) / time.Since(start).Seconds()
	over.end()
	again := offer(t, capacity/2, ask)
	again.more(t, size(50, capacity/2))
	again.end()
	t.Logf("idle: %v", idle)
	t.Logf("twice the capacity of %d/s for %d s: goodput %.0f/s, %.0f %%; p99 of those admitted %v; 503: %d, p99 of these %v",
		capacity, seconds, goodput, 100*goodput/capacity, over.p99(fine, 0), over.count("503"), over.p99("503", 0))
	t.Logf("half of it, at once after that: %v", again)
	assert.Positive(t, over.count("503"))
	others := over.total() - over.count(fine) - over.count("503")
	if full {
		assert.Zero(t, others, "%v", over)
		assert.Empty(t, idle.bad())
		assert.GreaterOrEqual(t, goodput, 0.9*capacity)
	} else { // a busy machine has less capacity than that, and net/http's client closes unused connections
		assert.LessOrEqual(t, others, over.total()/50, "%v", over)
	}
}
