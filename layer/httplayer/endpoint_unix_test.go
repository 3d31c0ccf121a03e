//go:build unix && !portable

package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/internal/rawio"
)

// A POST for which a server has closed an idle connection is sent on another one if no byte of it was
// sent. After that it fails with 502.
func TestHandlerPostOnIdleConnection(t *testing.T) {
	for name, reads := range map[string]bool{"closed before": false, "closed after the request": true} {
		t.Run(name, func(t *testing.T) {
			var served atomic.Int32
			addr := conntest.Serve(t, func(n int, conn net.Conn) {
				in := bufio.NewReader(conn)
				for i := 0; n > 0 || i == 0 || reads; i++ {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, err := io.ReadAll(req.Body)
					if err != nil || n == 0 && i == 1 {
						return
					}
					served.Add(1)
					sayf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
			})
			conns := make(chan *net.TCPConn, 2)
			e := endpoint(t, addr, WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				if tcp, ok := conn.(*net.TCPConn); ok {
					conns <- tcp
				}
				return conn, err
			}))
			front := servingBy(t, Handler(e, WithLogger(nil)))
			c := client(t, false)
			for i := range 2 {
				rsp, err := c.Post("http://"+front.addr+"/", "text/plain", io.MultiReader(strings.NewReader("hello")))
				require.NoError(t, err)
				if i == 1 && reads {
					assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
					rsp.Body.Close()
					assert.EqualValues(t, 1, served.Load())
					return
				}
				assert.Equal(t, "hello", read(t, rsp))
				if i == 0 && !reads {
					awaitEnd(t, <-conns)
				}
			}
			assert.EqualValues(t, 2, served.Load())
		})
	}
}

// awaitEnd waits until the end of the stream has arrived on conn.
func awaitEnd(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() (ended bool) {
		require.NoError(t, raw.Control(func(fd uintptr) {
			n, err := rawio.Peek(fd, make([]byte, 1))
			ended = n == 0 && err == nil
		}))
		return ended
	}, patience, time.Millisecond)
}
