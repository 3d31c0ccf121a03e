package reliability

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer"
)

// Clients that send a header, a body or a chunked body byte by byte are disconnected at the
// limit.
func TestSlowClients(t *testing.T) {
	headers, bodies, attackers := time.Second, time.Second, size(50, 500)
	if full {
		headers, bodies = 5*time.Second, 10*time.Second
	}
	tn := newTown(t, httplayer.WithHeaderTimeout(headers), httplayer.WithMinBodyRate(bodies, 240))
	kinds := []struct {
		name, begin string
		limit       time.Duration
	}{
		{"headers", "GET / HTTP/1.1\r\nHost: web.test\r\nX-Slow: ", headers},
		{"bodies", "POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 1000000\r\n\r\n", bodies},
		{"chunks", "POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n", bodies},
	}
	before := heap()
	held := make([][]time.Duration, len(kinds))
	tn.under(t, func() {
		var mu sync.Mutex
		var all sync.WaitGroup
		for i, kind := range kinds {
			for range attackers {
				conn, err := net.Dial("tcp", tn.addr)
				require.NoError(t, err)
				all.Go(func() {
					defer conn.Close()
					d := trickle(conn, kind.begin, kind.limit/5)
					mu.Lock()
					defer mu.Unlock()
					held[i] = append(held[i], d)
				})
			}
		}
		all.Wait()
	})
	for i, kind := range kinds {
		least, most := slices.Min(held[i]), slices.Max(held[i])
		t.Logf("%d attackers with slow %s cut off after %v to %v, with a limit of %v",
			attackers, kind.name, least.Round(time.Millisecond), most.Round(time.Millisecond), kind.limit)
		assert.GreaterOrEqual(t, least, kind.limit*9/10)
		assert.Less(t, most, patience)
	}
	t.Logf("heap: %+.1f MiB", grown(t, before))
}

// trickle returns how long the server put up with it.
func trickle(conn net.Conn, begin string, every time.Duration) time.Duration {
	return trickleUntil(conn, begin, "x", every, nil)
}

// trickleUntil sends piece at intervals until the server closes the connection, or stop is
// closed.
func trickleUntil(conn net.Conn, begin, piece string, every time.Duration, stop <-chan struct{}) time.Duration {
	start := time.Now()
	_ = conn.SetDeadline(start.Add(patience))
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		_, _ = io.Copy(io.Discard, conn)
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	_, err := fmt.Fprint(conn, begin)
	for err == nil {
		select {
		case <-cut:
			return time.Since(start)
		case <-stop:
			err = net.ErrClosed
		case <-tick.C:
			_, err = fmt.Fprint(conn, piece)
		}
	}
	held := time.Since(start)
	conn.Close()
	<-cut
	return held
}
