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

// Of those whose body is in chunks, which honest clients may send as slowly as they
// like, one address holds no more than it may.
func TestSlowChunks(t *testing.T) {
	limit, attackers := time.Second, size(50, 500)
	if full {
		limit = 10 * time.Second
	}
	allowed := attackers / 5
	pauses := httplayer.NewSlowBodyQuota(allowed, attackers)
	tn := newTownBehind(t, pauses.Allow, httplayer.WithMinBodyRate(limit, 240))
	before := heap()
	var most time.Duration
	held, stop := make(chan time.Duration, attackers), make(chan struct{})
	var all sync.WaitGroup
	tn.under(t, func() {
		for range attackers {
			conn, err := net.Dial("tcp", tn.addr)
			require.NoError(t, err)
			all.Go(func() {
				defer conn.Close()
				d := trickleUntil(conn, "POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", limit/5, stop)
				select {
				case <-stop: // it is one of those that are not cut
				default:
					held <- d
				}
			})
		}
		for range attackers - allowed {
			select {
			case d := <-held:
				most = max(most, d)
			case <-time.After(patience):
				assert.Fail(t, "they are not cut off")
			}
		}
	})
	assert.Empty(t, held, "no more than those")
	close(stop)
	all.Wait()
	t.Logf("%d of %d attackers cut off after %v at the most, with a limit of %v; heap: %+.1f MiB",
		attackers-allowed, attackers, most.Round(time.Millisecond), limit, grown(t, before))
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
