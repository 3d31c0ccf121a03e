package httplayer

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // a client of extended CONNECT

	"github.com/gotower/gotower/internal/conntest"
)

// acceptOf returns the Sec-WebSocket-Accept for the key of r.
func acceptOf(r *http.Request) string {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// webSocketServer accepts upgrades. It sends what it receives in upper case, and bye at the end.
// Other paths answer in other ways. ended reports the end of what each upgraded connection received.
func webSocketServer(t *testing.T) (addr string, ended <-chan error) {
	t.Helper()
	ends := make(chan error, 10)
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		in := bufio.NewReader(conn)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		key, _ := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
		if r.Method != http.MethodGet || r.ProtoMajor != 1 || len(key) != 16 || r.ContentLength != 0 || r.Header[":protocol"] != nil ||
			r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" || r.Host != "web.test" {
			t.Errorf("request: %+v", r)
		}
		accept := acceptOf(r)
		switch r.URL.Path {
		case "/wrong":
			accept = "wrong"
		case "/plain":
			say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
			return
		case "/refused":
			say(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
			return
		}
		sayf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n", accept, r.Header.Get("Sec-WebSocket-Protocol"))
		p := make([]byte, 100_000)
		for {
			n, err := in.Read(p)
			if string(p[:n]) == "abort" {
				_ = conn.(*net.TCPConn).SetLinger(0)
				return
			}
			say(conn, strings.ToUpper(string(p[:n])))
			if err != nil {
				ends <- err
				say(conn, "bye")
				return
			}
		}
	}), ends
}

// webSocketPaths are the ways in which a Server reaches an HTTP/1.1 WebSocket server.
var webSocketPaths = map[string]func(t testing.TB, up string) (addr string){
	"proxy":   func(t testing.TB, up string) string { t.Helper(); return oneProxy(t, up) },
	"proxies": func(t testing.TB, up string) string { t.Helper(); return twoProxies(t, up) },
}

// serverOf serves h by a Server.
func serverOf(t testing.TB, h http.Handler) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return servingOn(t, l, h, 0).addr
}

// webSocketTo opens a WebSocket over HTTP/2. What the test writes to the pipe is sent.
func webSocketTo(t *testing.T, addr, path string) (rsp *http.Response, in *io.PipeWriter) {
	t.Helper()
	c, r, in := webSocketRequest(t, addr, path)
	rsp, err := c.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { rsp.Body.Close() })
	return rsp, in
}

func webSocketRequest(t *testing.T, addr, path string) (c *http.Client, r *http.Request, in *io.PipeWriter) {
	t.Helper()
	tr := &xhttp2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) { //nolint:staticcheck // http.Transport has no extended CONNECT
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}}
	c = &http.Client{Transport: tr}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	body, in := io.Pipe()
	t.Cleanup(func() {
		cancel()
		in.Close()
		c.CloseIdleConnections()
	})
	r, err := http.NewRequestWithContext(ctx, http.MethodConnect, "http://web.test"+path, body)
	require.NoError(t, err)
	r.Header[":protocol"] = []string{"websocket"}
	r.Header.Set("Sec-WebSocket-Protocol", "chat")
	return c, r, in
}

func TestWebSocketOverHTTP2(t *testing.T) {
	for name, through := range webSocketPaths {
		t.Run(name, func(t *testing.T) {
			up, ended := webSocketServer(t)
			addr := through(t, up)

			rsp, in := webSocketTo(t, addr, "/echo")
			require.Equal(t, http.StatusOK, rsp.StatusCode)
			assert.Equal(t, http.Header{"Sec-Websocket-Protocol": {"chat"}}, withoutDate(rsp.Header))
			for _, text := range []string{"one", "two", strings.Repeat("x", 300_000)} {
				go say(in, text)
				got := make([]byte, len(text))
				_, err := io.ReadFull(rsp.Body, got)
				require.NoError(t, err)
				require.Equal(t, strings.ToUpper(text), string(got))
			}
			in.Close() // END_STREAM ends one direction
			require.ErrorIs(t, <-ended, io.EOF)
			rest, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			assert.Equal(t, "bye", string(rest))

			rsp, _ = webSocketTo(t, addr, "/echo")
			rsp.Body.Close() // RST_STREAM ends both
			<-ended

			rsp, in = webSocketTo(t, addr, "/echo")
			go say(in, "abort")
			_, err = io.ReadAll(rsp.Body)
			if name == "proxy" { // HTTP/1.1 proxies close the connection without an error
				var reset xhttp2.StreamError
				require.ErrorAs(t, err, &reset)
			}

			rsp, _ = webSocketTo(t, addr, "/refused")
			assert.Equal(t, http.StatusForbidden, rsp.StatusCode)
			assert.Equal(t, "no", read(t, rsp))
			for _, path := range []string{"/wrong", "/plain"} {
				rsp, _ = webSocketTo(t, addr, path)
				assert.Equal(t, http.StatusBadGateway, rsp.StatusCode, path)
				read(t, rsp)
			}
		})
	}
}

func withoutDate(h http.Header) http.Header {
	h.Del("Date")
	return h
}

// A handler with a wrapper serves no WebSocket over HTTP/2, and the client learns it.
func TestWebSocketNotAnnounced(t *testing.T) {
	up, _ := webSocketServer(t)
	addr := serverOf(t, AccessLog(io.Discard, JSONLog, nil)(Handler(endpoint(t, up))))
	c, r, _ := webSocketRequest(t, addr, "/echo")
	rsp, err := c.Do(r)
	if err == nil {
		rsp.Body.Close()
	}
	require.ErrorContains(t, err, "extended connect not supported by peer")
}

func TestExtendedConnectOtherProtocol(t *testing.T) {
	for name, opts := range map[string][]HandlerOption{"": nil, "with CONNECT": {WithConnect()}} {
		t.Run(name, func(t *testing.T) {
			rsp, err := newHandler(endpoint(t, "127.0.0.1:1"), opts...).serve(&http.Request{
				Method: http.MethodConnect, ProtoMajor: 2, Header: http.Header{":protocol": {"connect-udp"}},
			}, true)
			require.NoError(t, err)
			assert.Equal(t, http.StatusNotImplemented, rsp.StatusCode)
		})
	}
}
