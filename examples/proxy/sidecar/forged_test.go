package sidecar_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// recorder is an application that records its requests, and sends one response per connection.
type recorder struct {
	net.Listener
	mu   sync.Mutex
	seen bytes.Buffer
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &recorder{Listener: l}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return r
}

func (r *recorder) serve(conn net.Conn) {
	defer conn.Close()
	var ownPorts bytes.Buffer
	buf := make([]byte, 4096)
	for !bytes.Contains(ownPorts.Bytes(), []byte("\r\n\r\n")) {
		n, err := conn.Read(buf)
		ownPorts.Write(buf[:n])
		r.mu.Lock()
		r.seen.Write(buf[:n])
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.seen.Reset()
	return r.seen.String()
}

// A client cannot set the headers in which the proxy reports an identity, whatever the request
// line.
func TestForgedIdentityHeader(t *testing.T) {
	t.Parallel()
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = settings.Origin{Kind: settings.ProxyProtocol}
	})
	app := newRecorder(t)
	const fields = "\r\nHost: web\r\nl5d-client-id: forged\r\nL5D_CLIENT_ID: forged\r\nl5d-remote-ip: forged\r\n" +
		"l5d-server-id: forged\r\nConnection: close\r\n\r\n"
	for line, status := range map[string]string{
		"GET / HTTP/1.1":     "200",
		"get / HTTP/1.1":     "200",
		"GET / HTTP/1.0":     "200",
		"GET  / HTTP/1.1":    "200",
		"GET / HTTP/1.1 ":    "400",
		"GET / HTTP/1.2":     "200",
		"GET / HTTP/1.9":     "200",
		"GET / HTTP/1.10":    "400",
		"GET / http/1.1":     "400",
		"GET /a b HTTP/1.1":  "400",
		"GET\t/\tHTTP/1.1":   "400",
		" GET / HTTP/1.1":    "400",
		"GET /\x01 HTTP/1.1": "400",
		"GET /":              "400",
		"GET foo HTTP/1.1":   "400",
		"GET  /" + strings.Repeat("a", 2000) + " HTTP/1.1": "200",
	} {
		for _, split := range []int{0, 1, 11, len(line) - 1} {
			w := proxied(t, tn.Inbound, app.Addr().String())
			if split = min(split, len(line)); split > 0 {
				say(w, line[:split])
				time.Sleep(5 * time.Millisecond) // the proxy usually reads twice
			}
			say(w, line[split:]+fields)
			answer, err := io.ReadAll(w)
			require.NoError(t, err, "%q", line)
			require.Contains(t, string(answer), "HTTP/1.", "%q", line)
			require.Equal(t, status, string(answer[len("HTTP/1.1 "):][:3]), "%q: %s", line, answer)
			got := app.take()
			require.NotContains(t, got, "forged", "%q", line)
			require.Equal(t, status == "200", got != "", "%q", line)
		}
	}
}
