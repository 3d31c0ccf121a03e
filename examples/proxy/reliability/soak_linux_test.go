package reliability

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// Row 22: after ten minutes with all kinds of traffic, the proxy uses the same resources as at the
// start, and its memory does not grow. GOTOWER_SOAK sets another duration.
func TestSoak(t *testing.T) {
	if !full {
		t.Skip("it takes ten minutes: set GOTOWER_TESTS=full")
	}
	lasts, chat := 10*time.Minute, "chat.test:80"
	if d, err := time.ParseDuration(os.Getenv("GOTOWER_SOAK")); err == nil {
		lasts = d
	}
	var held holder
	var all []*upstream
	for range 4 {
		all = append(all, newUpstream(t, &held))
	}
	pl := newPlane(t, addrs(all)...)
	pl.cfg.Destinations[chat] = served(chat, controller.H2, newChat(t)).Destinations[chat]
	pl.mayBeSentAgain(t, http.MethodGet)
	p := startProxy(t, pl.addr)
	h1, h2, rpc := through(t, p.addr, false), through(t, p.addr, true), dialChat(t, p.addr, chat)
	fresh := through(t, p.addr, false)
	fresh.Transport.(*http.Transport).DisableKeepAlives = true
	clients := []*http.Client{h1, h2, fresh}
	for _, c := range clients { // for allocations that occur only once
		require.NoError(t, get(t.Context(), c, "http://web.test/"))
		c.CloseIdleConnections()
	}
	require.NoError(t, converse(t.Context(), rpc, 1))
	before := p.steady(t)
	got := offer(t, 150, func(ctx context.Context, i int) error { return get(ctx, clients[i%3], "http://web.test/") })
	posted := offer(t, 20, func(ctx context.Context, i int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web.test/", bytes.NewReader(make([]byte, 100_000)))
		if err != nil {
			return err
		}
		return do(clients[i%3], req)
	})
	chats := offer(t, 5, func(ctx context.Context, _ int) error { return converse(ctx, rpc, 20) })
	got.more(t, 150*20)
	begin := time.Now()
	var hostile sync.WaitGroup
	left := func() bool { return time.Since(begin) < lasts }
	hostile.Go(func() { // clients that reset streams
		for left() {
			_, _, _ = cutOff(t, p.addr, 2000, takenBack)
		}
	})
	for range 20 { // slow clients
		hostile.Go(func() {
			for left() {
				conn, err := net.Dial("tcp", p.addr)
				if assert.NoError(t, err) {
					trickle(conn, "GET / HTTP/1.1\r\nHost: web.test\r\nX-Slow: ", time.Second)
				}
			}
		})
	}
	minutes, rss := []float64{}, []float64{}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for n := 0; left(); n++ { // an endpoint comes or goes every second, and the controller every tenth time
		<-second.C
		web := served(webName, "", addrs(all[n%2:])...).Destinations[webName]
		web.Profile = pl.cfg.Destinations[webName].Profile
		pl.cfg.Destinations[webName] = web
		if n%10 == 9 {
			pl.stop()
			pl.start(t)
		}
		require.NoError(t, pl.Set(pl.cfg))
		if n%5 == 0 {
			minutes, rss = append(minutes, time.Since(begin).Minutes()), append(rss, p.rss(t))
		}
		if n%60 == 59 {
			t.Logf("%v: %v", time.Since(begin).Round(time.Second), p.measure(t))
		}
	}
	hostile.Wait()
	got.more(t, 150*20)
	got.end()
	posted.end()
	chats.end()
	for _, c := range clients {
		c.CloseIdleConnections()
	}
	after := p.settled(t, before.goroutines+10, before.fds+5)
	half := len(rss) / 2
	t.Logf("GET: %v", got)
	t.Logf("POST of 100 kB: %v", posted)
	t.Logf("conversations: %v", chats)
	t.Logf("before: %v; after: %v; RSS grew by %.2f MiB a minute in the second half",
		before, after, slope(minutes[half:], rss[half:]))
	assert.Empty(t, got.bad())
	assert.Empty(t, posted.bad())
	assert.Empty(t, chats.bad())
	assert.LessOrEqual(t, after.goroutines, before.goroutines+10)
	assert.LessOrEqual(t, after.fds, before.fds+5)
	if lasts >= 10*time.Minute { // the heap needs that long to find its size
		assert.Less(t, slope(minutes[half:], rss[half:]), 1.0)
	}
}

// slope returns the slope of the least-squares line.
func slope(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	n := float64(len(x))
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}
