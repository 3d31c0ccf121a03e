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

// Clients that send a header, a body or a chunked body byte by byte are disconnected at the limit.
func TestSlowClients(t *testing.T) {
	headers, bodies, attackers := time.Second, time.Second, size(50, 500)
	if full {
		headers, bodies = 5*time.Second, 10*time.Second
	}
	tn := newTestProxy(t, httplayer.WithHeaderTimeout(headers), httplayer.WithMinBodyRate(bodies, 240))
	kinds := []struct {
		name, begin string
		limit       time.Duration
	}{
		{"headers", "GET / HTTP/1.1\r\nHost: web.test\r\nX-Slow: ", headers},
		{"bodies", "POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 1000000\r\n\r\n", bodies},
	}
	before := heap()
	durations := make([][]time.Duration, len(kinds))
	tn.under(t, func() {
		var mu sync.Mutex
		var all sync.WaitGroup
		for i, kind := range kinds {
			for range attackers {
				start := time.Now() // the limit for headers begins when the connection is accepted
				conn, err := net.Dial("tcp", tn.addr)
				require.NoError(t, err)
				all.Go(func() {
					defer conn.Close()
					trickle(conn, kind.begin, kind.limit/5)
					d := time.Since(start)
					mu.Lock()
					defer mu.Unlock()
					durations[i] = append(durations[i], d)
				})
			}
		}
		all.Wait()
	})
	for i, kind := range kinds {
		least, most := slices.Min(durations[i]), slices.Max(durations[i])
		t.Logf("%d attackers with slow %s cut off after %v to %v, with a limit of %v",
			attackers, kind.name, least.Round(time.Millisecond), most.Round(time.Millisecond), kind.limit)
		assert.GreaterOrEqual(t, least, kind.limit*9/10)
		assert.Less(t, most, patience)
	}
	t.Logf("heap: %+.1f MiB", grown(t, before))
}

// trickle sends begin, and then a byte at intervals until the server closes the connection.
func trickle(conn net.Conn, begin string, every time.Duration) {
	_ = conn.SetDeadline(time.Now().Add(patience))
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
			return
		case <-tick.C:
			_, err = fmt.Fprint(conn, "x")
		}
	}
	conn.Close()
	<-cut
}
