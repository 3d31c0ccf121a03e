package h1

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

func used() int {
	debug.FreeOSMemory()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// An idle connection keeps no buffer.
func TestServerIdleMemory(t *testing.T) {
	const conns = 500
	s := serve(t, &message.ServerConfig{Exchange: handledBy(http.HandlerFunc(echo))})
	before := used()
	for range conns {
		conn := dial(t, s.addr)
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		r := bufio.NewReaderSize(conn, 16)
		rsp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		readAll(t, rsp)
	}
	require.Eventually(t, func() bool {
		resting := 0
		for _, c := range s.all() {
			if c.slot.Phase() == phaseRest {
				resting++
			}
		}
		return resting == conns
	}, 10*time.Second, 10*time.Millisecond)
	each := (used() - before) / conns
	t.Log(each, "bytes for both ends of an idle connection")
	require.Less(t, each, 12<<10)
}

// A tunnel and a hijacked connection need no checks, so they do not wake an idle process.
func TestServerTunnelRests(t *testing.T) {
	for name, cfg := range map[string]*message.ServerConfig{
		"hijacked": {Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if assert.NoError(t, err) {
				io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
				io.Copy(io.Discard, conn)
				conn.Close()
			}
		})},
		"tunnel": {Exchange: func(*http.Request) (*http.Response, error) {
			_, there := net.Pipe()
			return &http.Response{StatusCode: 200, Body: there}, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := serveInMemory(t, cfg)()
				other := new(counter)
				defer cfg.Sweeper.Add(other, 1).Remove()
				io.WriteString(conn, "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n")
				time.Sleep(patience / 2)
				assert.Less(t, other.Load(), int64(10))
				conn.Close()
			})
		})
	}
}

// counter counts the checks of the connections of a sweeper.
type counter struct{ atomic.Int64 }

func (c *counter) Sweep(uint32, time.Duration) time.Duration { c.Add(1); return sweep.Forever }

// The method and the host of a request, which metrics and caches keep, do not keep its headers.
func TestServerKeptStrings(t *testing.T) {
	const size = 500 << 10 // of the headers of one request
	var mu sync.Mutex      // there are several connections, one after the other
	var kept []string
	s := serve(t, &message.ServerConfig{Exchange: func(r *http.Request) (*http.Response, error) {
		mu.Lock()
		kept = append(kept, r.Method, r.Host, r.URL.Host)
		mu.Unlock()
		if r.Method == http.MethodConnect {
			return nil, errors.New("no tunnel")
		}
		return &http.Response{StatusCode: http.StatusOK}, nil
	}})
	conn := dial(t, s.addr)
	in, secret := bufio.NewReader(conn), strings.Repeat("x", size)
	var before int
	for i := range 60 {
		target := []string{"GET /", "DELETE /", "LOCK http://b%d/", "CONNECT c%d:443"}[i%4]
		if i == 4 {
			before = used()
		}
		if strings.Contains(target, "%d") {
			target = fmt.Sprintf(target, i)
		}
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: a%d\r\nSecret: %s\r\n\r\n", target, i, secret)
		if strings.HasPrefix(target, "CONNECT") { // it ends the connection
			io.Copy(io.Discard, in)
			conn = dial(t, s.addr)
			in.Reset(conn)
			continue
		}
		rsp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		readAll(t, rsp)
	}
	assert.Less(t, used()-before, 5*size)
	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, kept, 180)
}
