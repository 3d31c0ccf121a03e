package reliability

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// Row 8: an endpoint is added or removed every 50 ms. Removed endpoints still respond, so that late
// requests can be detected.
func TestEndpointChurn(t *testing.T) {
	whole(t)
	const perSecond, most, least = 20, 12, 4
	var late atomic.Int64
	all, gone := make([]*upstream, most), make([]atomic.Int64, most)
	for i := range all {
		all[i] = newUpstream(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if since := gone[i].Load(); since != 0 {
				for d := time.Now().UnixNano() - since; ; {
					if was := late.Load(); d <= was || late.CompareAndSwap(was, d) {
						break
					}
				}
			}
			_, _ = w.Write([]byte("hello"))
		}))
	}
	pl := newPlane(t, addrs(all)...)
	p := startProxy(t, pl.addr)
	clients := []*http.Client{through(t, p.addr, false), through(t, p.addr, true)}
	g := offer(t, size(200, 300), func(ctx context.Context, i int) error { return get(ctx, clients[i%2], "http://web.test/") })
	g.more(t, 100)
	before := p.measure(t)

	live := most
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	changes := perSecond * size(2, 300)
	for n := range changes {
		<-tick.C
		i := n * 5 % most // all, but never two neighbours
		var set []string
		switch there := gone[i].Load() == 0; {
		case there && live > least:
			live--
			set = without(all, gone, i)
		case !there:
			live++
			gone[i].Store(0)
			set = without(all, gone, -1)
		default:
			continue
		}
		require.NoError(t, pl.Set(served(webName, controller.Unknown, set...)))
		if gone[i].Load() == 0 && len(set) == live && !slices.Contains(set, all[i].addr) {
			gone[i].Store(time.Now().UnixNano())
		}
	}
	g.more(t, 50)
	for i := range gone {
		gone[i].Store(0)
	}
	require.NoError(t, pl.Set(served(webName, controller.Unknown, addrs(all)...)))
	g.more(t, size(100, 200))
	g.end()
	for _, c := range clients {
		c.CloseIdleConnections()
	}
	goroutines := before.goroutines*3/2 + 20
	after := p.settled(t, goroutines, before.fds*2+20)
	t.Logf("%d changes, %d a second: %v; the latest request came to an endpoint %v after it had gone",
		changes, perSecond, g, time.Duration(late.Load()).Round(time.Microsecond))
	t.Logf("proxy before: %v; after: %v", before, after)
	assert.Empty(t, g.bad())
	if full {
		assert.Less(t, time.Duration(late.Load()), time.Second)
	} else if more := after.fds - before.fds; more > 0 {
		goroutines += 2 * more // a busy machine needs more concurrent connections
	}
	assert.LessOrEqual(t, after.goroutines, goroutines)
}

// without returns the addresses of all listed endpoints except i.
func without(all []*upstream, gone []atomic.Int64, i int) (list []string) {
	for j, u := range all {
		if j != i && gone[j].Load() == 0 {
			list = append(list, u.addr)
		}
	}
	return list
}
