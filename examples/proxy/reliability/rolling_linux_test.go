package reliability

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Row 21: three upstreams are restarted in turn, without notice to the controller. Requests that
// may be retried do not fail, and others are never received twice.
func TestUpstreamRollingRestart(t *testing.T) {
	whole(t)
	var mu sync.Mutex
	seen := make(map[string]int)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := r.Header.Get("X-Id"); id != "" {
			mu.Lock()
			seen[id]++
			mu.Unlock()
		}
		_, _ = w.Write([]byte("hello"))
	})
	var all []*upstream
	for range 3 {
		all = append(all, newUpstream(t, handler))
	}
	pl := newPlane(t, addrs(all)...)
	pl.mayBeSentAgain(t, http.MethodGet)
	p := startProxy(t, pl.addr)
	clients := []*http.Client{through(t, p.addr, false), through(t, p.addr, true)}
	posted := offer(t, 30, func(ctx context.Context, i int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web.test/", bytes.NewReader([]byte("once")))
		if err != nil {
			return err
		}
		req.Header.Set("X-Id", strconv.Itoa(i))
		return do(clients[i%2], req)
	})
	got := offer(t, size(150, 270), func(ctx context.Context, i int) error { return get(ctx, clients[i%2], "http://web.test/") })
	got.more(t, 100)
	restarts := size(6, 60)
	for i := range restarts {
		all[i%3].restart(t)
		got.more(t, size(30, 150))
	}
	got.end()
	posted.end()
	twice := 0
	for _, n := range seen {
		if n > 1 {
			twice++
		}
	}
	t.Logf("%d restarts; GET: %v; POST: %v; seen twice: %d", restarts, got, posted, twice)
	assert.Empty(t, got.bad())
	assert.Zero(t, twice)
}
