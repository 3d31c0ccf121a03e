package httplayer_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// early answers without a look at the body.
func early(text string, length int64) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: http.StatusRequestEntityTooLarge, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(text)), ContentLength: length, Request: req,
		}, nil
	})
}

// An unread body does not break the connection. The next request is served, or the
// connection is closed, and the server does not panic.
func TestHandlerUnreadBody(t *testing.T) {
	t.Parallel()
	refuses := layer.NewStack[*http.Request, *http.Response]().RateLimit(1e-9, 1).Service(early("", 0))
	for name, tt := range map[string]struct {
		svc  httplayer.Service
		size int
		kept bool // the connection
	}{
		"refused":                    {refuses, 10, true},
		"answered early":             {early("too large", 9), 10, true},
		"answered early, in chunks":  {early("too large", -1), 10, true},
		"answered early, and large":  {early("too large", 9), 1 << 20, false},
		"answered early, no content": {early("", 0), 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", served(t, httplayer.Handler(tt.svc)))
			require.NoError(t, err)
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for i := range 5 {
				_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: %d\r\n\r\n%s", tt.size, strings.Repeat("x", tt.size))
				if err != nil && !tt.kept {
					break
				}
				require.NoError(t, err)
				rsp, err := http.ReadResponse(answers, nil)
				if err != nil && i > 0 && !tt.kept {
					break
				}
				require.NoError(t, err, "request %d", i)
				_, err = io.Copy(io.Discard, rsp.Body)
				require.NoError(t, err)
				require.GreaterOrEqual(t, rsp.StatusCode, 400)
			}
		})
	}
}

// The connection of a client that has its response and does not continue its body is
// closed.
func TestHandlerStalledBody(t *testing.T) {
	t.Parallel()
	conn, err := net.Dial("tcp", served(t, httplayer.Handler(early("too large", 9)), shortIdle))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1000\r\n\r\nonly this")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	text, err := io.ReadAll(conn)
	require.NoError(t, err, "the server closes")
	require.Contains(t, string(text), "too large")
}
