// Package rowtest tests what a proxy must forward unchanged. The same table of cases runs against
// every proxy in this module, with its observers (access log, metrics, tracing, compression)
// switched on, because observers tend to break such corner cases.
package rowtest

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // of WebSocket
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer is the raw peer

	"github.com/gotower/gotower/internal/conntest"
)

// patience is how long to wait for something that must happen. A loaded machine can be slow.
const patience = time.Minute

// Proxy is a proxy under test.
type Proxy struct {
	HTTP1   string        // address for requests to the HTTP/1.1 server
	HTTP2   string        // address for requests to the HTTP/2 server, over HTTP/2
	Connect bool          // whether it forwards CONNECT
	Log     func() string // returns its access log so far, in JSON
}

// Run tests the proxy that start returns. The proxy must forward to the two given servers:
// requests whose path begins with /two/ go to the HTTP/2 server.
func Run(t *testing.T, start func(t *testing.T, http1Addr, http2Addr string) Proxy) { //nolint:funlen // a row each
	t.Helper()
	// The servers send to waiting when a request has arrived, and to reset when a stream was reset.
	waiting := make(chan struct{}, 1)
	reset := make(chan http2.ErrCode, 1)
	http1Addr := conntest.Serve(t, func(_ int, conn net.Conn) { serveOne(conn, waiting) })
	http2Addr := conntest.Serve(t, func(_ int, conn net.Conn) { serveTwo(conn, waiting, reset) })
	p := start(t, http1Addr, http2Addr)
	// Each row begins with what it tests. The log must contain a line for each request.
	for name, row := range map[string]func(t *testing.T, p Proxy){
		"reason phrase": func(t *testing.T, p Proxy) {
			head, body := ask(t, p.HTTP1, "GET /reason HTTP/1.1\r\nHost: web\r\n\r\n")
			require.Regexp(t, "^HTTP/1.1 200 Very Fine\r\n", head)
			require.Equal(t, "ok", body)
			logged(t, p, "/reason", 200)
		},
		"informational": func(t *testing.T, p Proxy) {
			head, body := ask(t, p.HTTP1, "GET /hints HTTP/1.1\r\nHost: web\r\n\r\n")
			require.Regexp(t, "(?s)^HTTP/1.1 103 .*Link: x\r\n.*HTTP/1.1 200 OK\r\n", head)
			require.Equal(t, "ok", body)
			logged(t, p, "/hints", 200)
		},
		"trailers": func(t *testing.T, p Proxy) {
			head, body := ask(t, p.HTTP1, "GET /trailers HTTP/1.1\r\nHost: web\r\nTE: trailers\r\n\r\n")
			require.Contains(t, head, "Trailer: Sum\r\n")
			require.Equal(t, "ok Sum: 1", body)
			logged(t, p, "/trailers", 200)
		},
		"early response": func(t *testing.T, p Proxy) {
			head, body := ask(t, p.HTTP1, "POST /early HTTP/1.1\r\nHost: web\r\nContent-Length: 1000000\r\n\r\npart")
			require.Regexp(t, "^HTTP/1.1 413 Too Much\r\n", head)
			require.Equal(t, "large", body)
			logged(t, p, "/early", 413)
		},
		"HEAD": func(t *testing.T, p Proxy) {
			head, body := ask(t, p.HTTP1, "HEAD /head HTTP/1.1\r\nHost: web\r\n\r\n")
			require.Contains(t, head, "Content-Length: 5\r\n")
			require.Empty(t, body)
			logged(t, p, "/head", 200)
		},
		"WebSocket over HTTP/1.1": func(t *testing.T, p Proxy) {
			conn, in := dial(t, p.HTTP1)
			say(t, conn, "GET /switch HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n")
			rsp, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			require.Equal(t, "101 Switched Over", rsp.Status)
			require.Equal(t, acceptOf("a"), rsp.Header.Get("Sec-WebSocket-Accept"))
			echoes(t, conn, in)
			require.NoError(t, conn.Close())
			logged(t, p, "/switch", 101)
		},
		"CONNECT": func(t *testing.T, p Proxy) {
			if !p.Connect {
				t.Skip("not forwarded")
			}
			conn, in := dial(t, p.HTTP1)
			say(t, conn, "CONNECT web:443 HTTP/1.1\r\nHost: web:443\r\n\r\n")
			rsp, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
			require.NoError(t, err)
			require.Equal(t, "200 Connected", rsp.Status)
			echoes(t, conn, in)
			require.NoError(t, conn.Close())
			logged(t, p, "web:443", 200)
		},
		"client left": func(t *testing.T, p Proxy) {
			conn, _ := dial(t, p.HTTP1)
			say(t, conn, "GET /wait HTTP/1.1\r\nHost: web\r\n\r\n")
			<-waiting
			time.Sleep(time.Second) // a client that leaves sooner would count as half-closed
			require.NoError(t, conn.Close())
			logged(t, p, "/wait", 499)
		},
		"WebSocket over HTTP/2": func(t *testing.T, p Proxy) {
			c := newPeer(t, p.HTTP1)
			require.Equal(t, uint32(1), c.extended)
			c.headers(t, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", "web", ":path", "/switch")
			require.Equal(t, "200", next[*http2.MetaHeadersFrame](t, c).PseudoValue("status"))
			require.NoError(t, c.WriteData(1, true, []byte("hello")))
			require.Equal(t, "hello", string(next[*http2.DataFrame](t, c).Data()))
			logged(t, p, "/switch", 101)
		},
		"reset by the server": func(t *testing.T, p Proxy) {
			c := newPeer(t, p.HTTP2)
			c.headers(t, true, ":method", "GET", ":scheme", "http", ":authority", "web", ":path", "/two/reset")
			require.Equal(t, http2.ErrCodeEnhanceYourCalm, next[*http2.RSTStreamFrame](t, c).ErrCode)
			logged(t, p, "/two/reset", 502)
		},
		"reset within the body": func(t *testing.T, p Proxy) {
			c := newPeer(t, p.HTTP2)
			c.headers(t, true, ":method", "GET", ":scheme", "http", ":authority", "web", ":path", "/two/broken")
			require.Equal(t, "200", next[*http2.MetaHeadersFrame](t, c).PseudoValue("status"))
			require.Equal(t, http2.ErrCodeEnhanceYourCalm, next[*http2.RSTStreamFrame](t, c).ErrCode)
			logged(t, p, "/two/broken", 200)
		},
		"reset by the client": func(t *testing.T, p Proxy) {
			c := newPeer(t, p.HTTP2)
			c.headers(t, true, ":method", "GET", ":scheme", "http", ":authority", "web", ":path", "/two/hold")
			<-waiting
			require.NoError(t, c.WriteRSTStream(1, http2.ErrCodeInadequateSecurity))
			require.Equal(t, http2.ErrCodeInadequateSecurity, <-reset)
			logged(t, p, "/two/hold", 499)
		},
		"trailers over HTTP/2": func(t *testing.T, p Proxy) {
			c := newPeer(t, p.HTTP2)
			c.headers(t, true, ":method", "GET", ":scheme", "http", ":authority", "web", ":path", "/two/trailers")
			require.Equal(t, "200", next[*http2.MetaHeadersFrame](t, c).PseudoValue("status"))
			require.Equal(t, "ok", string(next[*http2.DataFrame](t, c).Data()))
			f := next[*http2.MetaHeadersFrame](t, c)
			require.Equal(t, "sum", f.Fields[0].Name)
			require.True(t, f.StreamEnded())
			logged(t, p, "/two/trailers", 200)
		},
	} {
		t.Run(name, func(t *testing.T) { row(t, p) })
	}
}

// logged waits until the access log contains a line with this path and status.
func logged(t *testing.T, p Proxy, path string, status int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for line := range strings.Lines(p.Log()) {
			if strings.Contains(line, path+`"`) && strings.Contains(line, fmt.Sprintf(`"status":%d,`, status)) {
				return true
			}
		}
		return false
	}, patience, 5*time.Millisecond, "%s %d in %s", path, status, p.Log())
}

// dial returns a connection to addr and a reader for it. Both end with the test.
func dial(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn, bufio.NewReader(conn)
}

// say writes text to the connection w.
func say(t *testing.T, w io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
}

// echoes tests a tunnel to a server that sends back what it receives.
func echoes(t *testing.T, w io.Writer, r io.Reader) {
	t.Helper()
	say(t, w, "hello")
	got := make([]byte, 5)
	_, err := io.ReadFull(r, got)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
}

// ask sends an HTTP/1.1 request and returns the headers of all responses, and the last body
// followed by its trailers.
func ask(t *testing.T, addr, request string) (head, body string) {
	t.Helper()
	conn, in := dial(t, addr)
	var text strings.Builder
	// The responses are read from in, and their text is also collected in text.
	in = bufio.NewReader(io.TeeReader(in, &text))
	say(t, conn, request)
	// Whether a response has a body depends on the method.
	method, _, _ := strings.Cut(request, " ")
	for {
		rsp, err := http.ReadResponse(in, httptest.NewRequestWithContext(t.Context(), method, "/", http.NoBody))
		require.NoError(t, err)
		b, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		// Informational responses come before the final one.
		if rsp.StatusCode >= http.StatusOK {
			body = string(b)
			for name := range rsp.Trailer {
				body = fmt.Sprint(body, " ", name, ": ", rsp.Trailer.Get(name))
			}
			return text.String(), body
		}
	}
}

func acceptOf(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // of WebSocket
	return base64.StdEncoding.EncodeToString(sum[:])
}
