package reliability

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer"
)

// A client that sends a header byte by byte is disconnected at the limit.
func TestSlowHeaders(t *testing.T) {
	limit := time.Second
	if full {
		limit = 5 * time.Second
	}
	tn := newTown(t, httplayer.WithHeaderTimeout(limit))
	slowly(t, tn, limit, "GET / HTTP/1.1\r\nHost: web.test\r\nX-Slow: ")
}

// A client that sends a body byte by byte is disconnected at the limit.
func TestSlowBodies(t *testing.T) {
	limit := time.Second
	if full {
		limit = 10 * time.Second
	}
	tn := newTown(t, httplayer.WithMinBodyRate(limit, 240))
	slowly(t, tn, limit, "POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 1000000\r\n\r\n")
}

// A chunked body has the same limit.
func TestSlowChunks(t *testing.T) {
	limit := time.Second
	if full {
		limit = 10 * time.Second
	}
	tn := newTown(t, httplayer.WithMinBodyRate(limit, 240))
	slowly(t, tn, limit, "POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n")
}

// slowly begins many requests and goes on by a byte now and then, beside honest
// traffic, until all are cut off.
func slowly(t *testing.T, tn *town, limit time.Duration, begin string) {
	attackers := size(50, 500)
	before := heap()
	var mu sync.Mutex
	var least, most time.Duration
	tn.under(t, func() {
		var all sync.WaitGroup
		for range attackers {
			conn, err := net.Dial("tcp", tn.addr)
			require.NoError(t, err)
			all.Go(func() {
				defer conn.Close()
				held := trickle(conn, begin, limit/5)
				mu.Lock()
				defer mu.Unlock()
				if least == 0 || held < least {
					least = held
				}
				most = max(most, held)
			})
		}
		all.Wait()
	})
	t.Logf("%d attackers cut off after %v to %v, with a limit of %v; heap: %+.1f MiB",
		attackers, least.Round(time.Millisecond), most.Round(time.Millisecond), limit, grown(t, before))
	assert.GreaterOrEqual(t, least, limit*9/10)
	assert.Less(t, most, patience)
}

// trickle returns how long the server put up with it.
func trickle(conn net.Conn, begin string, every time.Duration) time.Duration {
	return trickleUntil(conn, begin, "x", every, nil)
}

// trickleUntil says piece after piece until the server has enough, or stop is
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
