package reliability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Row 7: many short connections, of which every other one is reset before its response, followed by
// more concurrent requests than may be in flight.
func TestConnectionStorm(t *testing.T) {
	whole(t)
	const most = 500
	many := size(200, 500)
	held := &holder{release: make(chan struct{})}
	p := startProxy(t, newPlane(t, newUpstream(t, held).addr).addr, fmt.Sprintf("LINKERD2_PROXY_OUTBOUND_MAX_IN_FLIGHT=%d", most))
	client := through(t, p.addr, false)
	g := offer(t, size(100, 50), func(ctx context.Context, _ int) error { return get(ctx, client, "http://web.test/") })
	g.more(t, 50)
	before := p.measure(t)
	apart(t, "storm", p.addr, size(500, 20_000))
	g.more(t, 50)
	g.end()
	t.Logf("good traffic: %v", g)
	assert.Empty(t, g.bad())

	crowd := &load{outcome: make(map[string][]time.Duration)}
	for range most {
		crowd.done.Go(func() {
			start := time.Now()
			crowd.add(get(t.Context(), client, "http://web.test/hold"), time.Since(start))
		})
	}
	require.Eventually(t, func() bool { return held.open.Load() == most }, patience, time.Millisecond, "%v", crowd)
	extra := offer(t, 250, func(ctx context.Context, _ int) error {
		err := get(ctx, client, "http://web.test/hold")
		if err != nil && strings.HasPrefix(err.Error(), "503 ") {
			err = errors.New("503")
		}
		return err
	})
	require.Eventually(t, func() bool { return extra.total() >= many }, patience, time.Millisecond, "%v", extra)
	extra.end()
	close(held.release)
	crowd.done.Wait()
	t.Logf("%d in flight, which is the limit: %v; %d more: %d answered 503, p99 %v",
		most, crowd, extra.total(), extra.count("503"), extra.p99("503", 0))
	assert.Equal(t, most, crowd.count(fine))
	assert.Equal(t, extra.total(), extra.count("503"))

	client.CloseIdleConnections()
	after := p.settled(t, before.goroutines+5, before.fds+5)
	t.Logf("proxy before: %v; after: %v", before, after)
	assert.LessOrEqual(t, after.fds, before.fds+5)
	assert.LessOrEqual(t, after.goroutines, before.goroutines+5)
}

// storm opens n connections within ten seconds, with as many workers as that takes.
func storm(t *testing.T, addr string, n int) {
	const workers = 64
	var all sync.WaitGroup
	var mu sync.Mutex
	failed := make(map[string]int)
	turn := make(chan int)
	for range workers {
		all.Go(func() {
			for i := range turn {
				if err := short(addr, i%2 == 0); err != nil {
					mu.Lock()
					failed[err.Error()]++
					mu.Unlock()
				}
			}
		})
	}
	start, tick := time.Now(), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range n {
		for time.Since(start) < 10*time.Second*time.Duration(i)/time.Duration(max(n, 5000)) {
			<-tick.C
		}
		turn <- i
	}
	close(turn)
	all.Wait()
	t.Logf("%d connections in %v; failed: %v", n, time.Since(start).Round(time.Millisecond), failed)
	require.Empty(t, failed)
}

// short opens a connection and sends one request. If wait is true, it reads the response. In the
// end, it resets the connection, because closed connections would occupy all local ports.
func short(addr string, wait bool) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n"); err != nil || !wait {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		err = fmt.Errorf("answered %.40q", answer)
	}
	return err
}
