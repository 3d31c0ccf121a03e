package h1

import (
	"bufio"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// An idle connection keeps no buffer.
func TestServerIdleMemory(t *testing.T) {
	const conns = 500
	s := serve(t, &message.ServerConfig{Handler: http.HandlerFunc(echo)})
	used := func() int {
		debug.FreeOSMemory()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapInuse + m.StackInuse)
	}
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
