package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // a client of extended CONNECT

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// webSockets is an HTTP/2 connection to a bare Handler, and the upstream, in a bubble.
type webSockets struct {
	t        *testing.T
	client   net.Conn
	h2       http.RoundTripper
	closed   <-chan error // receives when the Server has closed the connection
	e        *Endpoint
	upstream chan net.Conn // the connections that were upgraded
}

// limitOfServer is the limit of the Server for idle connections and for stalled writes.
const limitOfServer = time.Minute

func newWebSockets(t *testing.T, ctx context.Context, stack layer.Stack[*http.Request, *http.Response], wrap func(net.Conn) net.Conn) *webSockets {
	t.Helper()
	h, ws := newHost(ctx, 0), &webSockets{t: t, upstream: make(chan net.Conn, 10)}
	h.srv.Handler = http.HandlerFunc(ws.serve)
	ws.e = NewEndpoint(ctx, "10.0.0.1:80", WithMaxConns(1), WithIdleTimeout(time.Second), WithDialContext(
		func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := h.network.DialContext(ctx, network, addr)
			if err == nil && wrap != nil {
				conn = wrap(conn)
			}
			return conn, err
		}))
	s := NewServer(Handler(stack.Service(ws.e)), WithHeaderTimeout(time.Second), WithMinBodyRate(time.Second, 1000),
		WithServerIdleTimeout(limitOfServer), WithWriteTimeout(limitOfServer))
	ws.client, ws.closed = piped(ctx, s)
	require.NoError(t, ws.client.SetDeadline(time.Now().Add(3*time.Hour)))
	t.Cleanup(func() { ws.client.Close() })
	return ws
}

// serve is the upstream. It sends what it receives.
func (ws *webSockets) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/silent" {
		<-r.Context().Done()
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+acceptOf(r)+"\r\n\r\n")
	ws.upstream <- conn
	if r.URL.Path == "/flood" {
		for err == nil {
			_, err = conn.Write(make([]byte, 10_000))
		}
		return
	}
	pipe(conn, buf)
}

// open opens a WebSocket.
func (ws *webSockets) open(ctx context.Context, path string) (rsp *http.Response, both io.ReadWriter) {
	ws.t.Helper()
	if ws.h2 == nil {
		var err error
		ws.h2, err = (&xhttp2.Transport{AllowHTTP: true}).NewClientConn(ws.client) //nolint:staticcheck // http.Transport has no extended CONNECT
		require.NoError(ws.t, err)
	}
	body, in := io.Pipe()
	ws.t.Cleanup(func() { in.Close() })
	r, err := http.NewRequestWithContext(ctx, http.MethodConnect, "http://web.test"+path, body)
	require.NoError(ws.t, err)
	r.Header[":protocol"] = []string{"websocket"}
	rsp, err = ws.h2.RoundTrip(r)
	require.NoError(ws.t, err)
	ws.t.Cleanup(func() { rsp.Body.Close() })
	return rsp, struct {
		io.Reader
		io.Writer
	}{rsp.Body, in}
}

// released checks that the Endpoint has no request and no connection.
func (ws *webSockets) released() {
	ws.t.Helper()
	synctest.Wait()
	state := ws.e.Describe().State
	assert.Equal(ws.t, 0, state.Get("in_flight"))
	assert.Equal(ws.t, 0, state.Get("connections"))
}

// closes checks that the Server closes the connection after limit and not before.
func (ws *webSockets) closes(limit time.Duration) {
	ws.t.Helper()
	began := time.Now()
	<-ws.closed
	assert.InDelta(ws.t, limit, time.Since(began), float64(2*sweep.Interval))
}

// The limits for bodies, headers and idle connections do not end a silent WebSocket. Its stream
// does not count as idle until its end.
func TestWebSocketLifetime(t *testing.T) {
	for name, stack := range map[string]layer.Stack[*http.Request, *http.Response]{
		"Endpoint": NewStack(),
		"layers":   NewStack().ResponseHeaderTimeout(time.Second).Retry(RetryPolicy{AttemptTimeout: time.Second}).Limit(1),
		"Timeout":  NewStack().Timeout(2 * time.Minute).Limit(1),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				ws := newWebSockets(t, ctx, stack, nil)
				for range 2 {
					rsp, both := ws.open(ctx, "/")
					require.Equal(t, http.StatusOK, rsp.StatusCode)
					require.True(t, hears(both, "hello"))
					time.Sleep(2*time.Minute - time.Second)
					require.True(t, hears(both, "still here"))
					assert.Equal(t, 1, ws.e.Describe().State.Get("in_flight"))
					if name == "Timeout" {
						_, err := rsp.Body.Read(make([]byte, 1))
						require.ErrorAs(t, err, new(xhttp2.StreamError))
					} else {
						time.Sleep(10 * time.Minute)
						require.True(t, hears(both, "at the end"))
						require.NoError(t, rsp.Body.Close())
					}
					ws.released()
				}
				ws.closes(limitOfServer)
			})
		})
	}
}

func TestWebSocketHandshakeLimits(t *testing.T) {
	t.Run("upstream does not answer", func(t *testing.T) {
		bubble(t, func(t *testing.T, ctx context.Context) {
			ws := newWebSockets(t, ctx, NewStack().ResponseHeaderTimeout(10*time.Second), nil)
			began := time.Now()
			rsp, _ := ws.open(ctx, "/silent")
			assert.Equal(t, http.StatusGatewayTimeout, rsp.StatusCode)
			assert.Equal(t, 10*time.Second, time.Since(began))
			ws.released()
			_, both := ws.open(ctx, "/")
			assert.True(t, hears(both, "the connection serves others"))
		})
	})
	t.Run("client does not end the headers", func(t *testing.T) {
		bubble(t, func(t *testing.T, ctx context.Context) {
			ws := newWebSockets(t, ctx, NewStack(), nil)
			go pipe(io.Discard, ws.client)
			c := newFramerClient(t, ws.client)
			for _, f := range [][2]string{{":method", "CONNECT"}, {":scheme", "http"}, {":authority", "a"}, {":path", "/"}, {":protocol", "websocket"}} {
				require.NoError(t, c.enc.WriteField(hpackField(f[0], f[1])))
			}
			require.NoError(t, c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block.Bytes()}))
			ws.closes(time.Second)
			assert.Empty(t, ws.upstream)
		})
	})
}

// A client that reads nothing holds the upstream for no longer than the limit for writes.
func TestWebSocketStalledClient(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		ws := newWebSockets(t, ctx, NewStack().Limit(1), nil)
		rsp, _ := ws.open(ctx, "/flood")
		time.Sleep(limitOfServer - time.Second)
		assert.Equal(t, 1, ws.e.Describe().State.Get("in_flight"))
		time.Sleep(time.Second + 2*sweep.Interval)
		ws.released()
		_, err := io.Copy(io.Discard, rsp.Body)
		require.ErrorAs(t, err, new(xhttp2.StreamError))
		_, both := ws.open(ctx, "/")
		assert.True(t, hears(both, "the connection serves others"))
	})
}

// resetAtEnd is a connection on which the end of the other side is a reset.
type resetAtEnd struct{ net.Conn }

func (c resetAtEnd) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == io.EOF {
		err = syscall.ECONNRESET
	}
	return n, err
}

// The stream and the connection to the upstream are released when either side aborts.
func TestWebSocketAborts(t *testing.T) {
	for name, tt := range map[string]struct {
		wrap   func(net.Conn) net.Conn
		abort  func(ws *webSockets, client *http.Response, upstream net.Conn)
		closed bool // the whole connection of the client
	}{
		"client resets":      {abort: func(_ *webSockets, rsp *http.Response, _ net.Conn) { rsp.Body.Close() }},
		"client disconnects": {abort: func(ws *webSockets, _ *http.Response, _ net.Conn) { ws.client.Close() }, closed: true},
		"upstream closes":    {abort: func(_ *webSockets, _ *http.Response, up net.Conn) { up.Close() }},
		"upstream resets":    {abort: func(_ *webSockets, _ *http.Response, up net.Conn) { up.Close() }, wrap: func(c net.Conn) net.Conn { return resetAtEnd{c} }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				ws := newWebSockets(t, ctx, NewStack().Limit(1), tt.wrap)
				for range 3 {
					rsp, both := ws.open(ctx, "/")
					require.True(t, hears(both, "hello"))
					upstream := <-ws.upstream
					tt.abort(ws, rsp, upstream)
					synctest.Wait()
					if name == "upstream closes" { // one direction only, for the proxy
						_, err := rsp.Body.Read(make([]byte, 1))
						require.ErrorIs(t, err, io.EOF)
						assert.Equal(t, 1, ws.e.Describe().State.Get("in_flight"))
						say(both, "too late")
					}
					if name == "upstream resets" {
						_, err := rsp.Body.Read(make([]byte, 1))
						require.ErrorAs(t, err, new(xhttp2.StreamError))
					}
					ws.released()
					_, err := upstream.Write([]byte("x"))
					require.Error(t, err)
					if tt.closed {
						ws.closes(0)
						return
					}
				}
				ws.closes(limitOfServer)
			})
		})
	}
}
