package reliability

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Row 6: what a connection costs that is idle after one request, after the idle connections to the
// upstream have been closed.
func TestIdleConnections(t *testing.T) {
	whole(t)
	pl := newPlane(t, newUpstream(t, nil).addr)
	for _, kind := range []struct {
		name string
		n    int
		kib  float64 // maximum per connection
		open func(t *testing.T, addr string) (end func())
	}{
		{"HTTP1", size(500, 10_000), 12, idleH1},
		{"HTTP2", size(200, 10_000), 12, idleH2}, // the stack alone has 8
	} {
		t.Run(kind.name, func(t *testing.T) {
			start := func(environ ...string) (p *process, before gauge) {
				p = startProxy(t, pl.addr, environ...)
				kind.open(t, p.addr)() // for allocations that occur only once
				return p, p.steady(t)
			}
			p, before := start("GOGC=1") // almost no garbage, which the memory in use includes
			each := openAndClose(t, p, before, kind.n, kind.open)
			t.Logf("%d idle connections: %.1f KiB each", kind.n, each)
			if !full { // with few connections, the heap's reserve is too large a part
				return
			}
			assert.LessOrEqual(t, each, kind.kib)
			p, before = start()
			openAndClose(t, p, before, kind.n, kind.open)
			first := p.minute(t)
			openAndClose(t, p, before, kind.n, kind.open)
			second := p.minute(t)
			t.Logf("RSS %.1f MiB before, %.1f a minute after they were closed (%+.0f %%), and %.1f after as many again (%+.0f %%)",
				before.rss, first, 100*(first/before.rss-1), second, 100*(second/first-1))
			assert.LessOrEqual(t, second, 1.1*first)
		})
	}
}

// openAndClose opens n connections, closes them, and returns the memory per connection in heap and
// stacks. It logs the RSS, which includes the heap's reserve.
func openAndClose(t *testing.T, p *process, before gauge, n int, open func(t *testing.T, addr string) (end func())) (kib float64) {
	t.Helper()
	var ends []func()
	for range n {
		ends = append(ends, open(t, p.addr))
	}
	now := p.steady(t)
	t.Logf("open: %.2f goroutines and %.1f KiB of RSS each; proxy: %v",
		float64(now.goroutines-before.goroutines)/float64(n), (now.rss-before.rss)*1024/float64(n), now)
	for _, end := range ends {
		end()
	}
	after := p.settled(t, before.goroutines+5, before.fds+5)
	t.Logf("closed: %v; before: %v", after, before)
	assert.LessOrEqual(t, after.goroutines, before.goroutines+5)
	assert.LessOrEqual(t, after.fds, before.fds+5)
	return (now.heap - before.heap) * 1024 / float64(n)
}

func idleH1(t *testing.T, addr string) (end func()) {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n")
	require.NoError(t, err)
	rsp, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, rsp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, rsp.StatusCode)
	return func() { conn.Close() }
}

func idleH2(t *testing.T, addr string) (end func()) {
	c := dialRaw(t, addr)
	require.NoError(t, c.conn.SetDeadline(time.Time{}))
	require.NoError(t, c.request(1, "GET", "/", true))
	require.Eventually(t, func() bool { return c.answer(1) == "200" }, patience, 100*time.Microsecond)
	return c.close
}

// Row 6: clients request 10 MB and read nothing.
func TestStalledReaders(t *testing.T) {
	whole(t)
	body := make([]byte, 10<<20)
	up := newUpstream(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
	pl := newPlane(t, up.addr)
	for _, kind := range []struct {
		name string
		open func(t *testing.T, addr string) (end func())
	}{{"HTTP/1.1", stalledH1}, {"HTTP/2", stalledH2}} {
		p := startProxy(t, pl.addr)
		idleH1(t, p.addr)() // for allocations that occur only once
		n, came := size(50, 500), up.requests.Load()
		before := p.steady(t)
		var ends []func()
		for i := range n {
			ends = append(ends, kind.open(t, p.addr))
			require.Eventually(t, func() bool { return up.requests.Load() == came+int64(i+1) }, patience, 100*time.Microsecond)
		}
		now := p.steady(t)
		each := (now.rss - before.rss) * 1024 / float64(n)
		t.Logf("%d stalled readers by %s: %.1f KiB each; proxy: %v", n, kind.name, each, now)
		for _, end := range ends {
			end()
		}
		after := p.settled(t, before.goroutines+5, before.fds+5)
		t.Logf("after they left: %v", after)
		assert.LessOrEqual(t, after.goroutines, before.goroutines+5)
		assert.LessOrEqual(t, after.fds, before.fds+5)
		if full {
			assert.LessOrEqual(t, each, 256.0)
		}
	}
}

func stalledH1(t *testing.T, addr string) (end func()) {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n")
	require.NoError(t, err)
	return func() { conn.Close() }
}

// stalledH2 reads frames, but never lets the server send more than the first window.
func stalledH2(t *testing.T, addr string) (end func()) {
	c := dialRaw(t, addr)
	require.NoError(t, c.conn.SetDeadline(time.Time{}))
	require.NoError(t, c.request(1, "GET", "/", true))
	return c.close
}

// steady waits until the RSS has changed by less than a hundredth for 6 s. The proxy returns memory
// to the system every 5 s.
func (p *process) steady(t testing.TB) (now gauge) {
	t.Helper()
	if !full {
		return p.measure(t) // memory is asserted in full size only
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	was, quiet := 0.0, 0
	for range 600 {
		<-look.C
		rss := p.rss(t)
		if quiet++; rss > was*1.01 || rss < was*0.99 {
			was, quiet = rss, 0
		}
		if quiet == 120 {
			break
		}
	}
	return p.measure(t)
}

// minute returns the RSS after a minute with 50 requests per second.
func (p *process) minute(t testing.TB) (rss float64) {
	t.Helper()
	client, end := through(t, p.addr, true), time.Now().Add(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(end) {
		<-tick.C
		require.NoError(t, get(t.Context(), client, "http://web.test/"))
	}
	return p.rss(t)
}
