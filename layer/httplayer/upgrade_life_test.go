package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// hears reports whether the peer echoes a word.
func hears(c io.ReadWriter, word string) bool {
	say(c, word)
	got := make([]byte, len(word))
	_, err := io.ReadFull(c, got)
	return err == nil && string(got) == word
}

// The Endpoint itself ends an upgraded connection when its context ends.
func TestUpgradeContextEnds(t *testing.T) {
	svc := NewStack().Limit(1).Service(endpoint(t, serve(t, http.HandlerFunc(switchToEcho)), WithMaxConns(1)))
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		req := request(t, http.MethodGet, "http://web/", "")
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		rsp, err := svc.Call(ctx, req)
		require.NoError(t, err)
		both, ok := rsp.Body.(io.ReadWriteCloser)
		require.True(t, ok)
		assert.True(t, hears(both, "hello"))
		cancel()
		over := make(chan error, 1)
		go func() {
			_, err := both.Read(make([]byte, 1))
			over <- err
		}()
		select {
		case err := <-over:
			require.Error(t, err)
		case <-time.After(patience):
			require.Fail(t, "it lives on")
		}
		_ = both.Close()
		require.NoError(t, svc.Ready(t.Context())) // the end of ctx may still be at giving its place back
	}
}

// dialUpgrade upgrades a connection to a proxy.
func dialUpgrade(t *testing.T, ctx context.Context, h *host, addr string) (net.Conn, io.ReadWriter) {
	t.Helper()
	conn, err := h.network.DialContext(ctx, "tcp", addr)
	require.NoError(t, err)
	say(conn, "GET / HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	rsp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	return conn, struct {
		io.Reader
		io.Writer
	}{in, conn}
}

// Through a whole proxy an upgraded connection ends when one side ends, or with a Timeout.
func TestUpgradeLifetime(t *testing.T) {
	const long = 10 * time.Minute // more than all time limits that are set by default
	for name, stack := range map[string]layer.Stack[*http.Request, *http.Response]{
		"Endpoint": NewStack(),
		"layers":   NewStack().ResponseHeaderTimeout(time.Second).Retry(RetryPolicy{AttemptTimeout: time.Second}).Limit(1),
		"Timeout":  NewStack().Timeout(time.Minute).Limit(1),
	} {
		for _, own := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", http.Server", true: ", Server"}[own], func(t *testing.T) {
				bubble(t, func(t *testing.T, ctx context.Context) {
					h := newHost(ctx, 0)
					h.srv.Handler = http.HandlerFunc(switchToEcho)
					e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(h.network.DialContext))
					svc := stack.Service(e)
					serveInBubble(ctx, t, h, "10.0.0.9:80", Handler(svc), own)
					for range 2 { // the place comes back
						conn, both := dialUpgrade(t, ctx, h, "10.0.0.9:80")
						require.True(t, hears(both, "hello"))
						time.Sleep(30 * time.Second)
						require.True(t, hears(both, "still here"))
						time.Sleep(31 * time.Second)
						if name == "Timeout" {
							assert.False(t, hears(both, "cut"))
						} else {
							require.True(t, hears(both, "and here"))
							time.Sleep(long)
							assert.True(t, hears(both, "at the end"))
							assert.Equal(t, 1, e.Describe().State.Get("in_flight"))
						}
						conn.Close()
						synctest.Wait()
						assert.Equal(t, 0, e.Describe().State.Get("connections"))
					}
				})
			})
		}
	}
}

// serveInBubble serves handler by net/http's server, or by that of this package.
func serveInBubble(ctx context.Context, t *testing.T, h *host, addr string, handler http.Handler, own bool) {
	t.Helper()
	l, err := h.network.Listen("tcp", addr)
	require.NoError(t, err)
	if !own {
		srv := &http.Server{Handler: handler}
		go srv.Serve(l)
		context.AfterFunc(ctx, func() { srv.Close() })
		return
	}
	s := NewServer(handler)
	context.AfterFunc(ctx, func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.Call(ctx, conn)
		}
	}()
}
