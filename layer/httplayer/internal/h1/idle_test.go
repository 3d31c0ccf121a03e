package h1

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
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
	s := serve(t, &message.ServerConfig{Handler: http.HandlerFunc(echo)})
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

// The method and the host of a request, which metrics and caches keep, do not keep its headers.
func TestServerKeptStrings(t *testing.T) {
	const size = 500 << 10 // of the headers of one request
	var kept []string
	s := serve(t, &message.ServerConfig{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		kept = append(kept, r.Method, r.Host, r.URL.Host)
	})})
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
	assert.Len(t, kept, 180)
}
