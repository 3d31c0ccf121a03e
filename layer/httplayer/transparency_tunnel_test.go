package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
)

// tunnelled accepts every CONNECT and Upgrade with answer and echoes its input in upper
// case. It sends bye when its peer has closed its sending half.
func tunnelled(t testing.TB, answer string) (addr string, heads <-chan string) {
	t.Helper()
	out := make(chan string, 10)
	return conntest.Serve(t, func(_ int, conn net.Conn) {
		var text []byte
		for one := make([]byte, 1); !strings.HasSuffix(string(text), "\r\n\r\n"); text = append(text, one...) {
			if _, err := io.ReadFull(conn, one); err != nil {
				return
			}
		}
		out <- strings.ReplaceAll(string(text), "\r\n", "\n")
		say(conn, answer)
		p := make([]byte, 1024)
		for {
			n, err := conn.Read(p)
			say(conn, strings.ToUpper(string(p[:n])))
			if err != nil {
				break
			}
		}
		say(conn, "bye")
	}), out
}

const (
	upgradeHead = "GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: shout\n\n"
	connectHead = "CONNECT web:443 HTTP/1.1\nHost: web:443\n\n"
	switching   = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n"
	established = "HTTP/1.1 200 Connection established\r\n\r\n"
)

// converse speaks through a tunnel, each word answered before the next, and
// ends one way before the other.
func converse(t *testing.T, c *wireClient, already string) {
	t.Helper()
	if already != "" {
		hear(t, c, strings.ToUpper(already))
	}
	for _, word := range []string{"one", "two"} {
		say(c, word)
		hear(t, c, strings.ToUpper(word))
	}
	require.NoError(t, c.Conn.(halfCloser).CloseWrite())
	hear(t, c, "bye")
	c.over()
}

func hear(t *testing.T, c *wireClient, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(c.in, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func TestTransparencyA11Upgrade(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		for name, early := range map[string]string{"": "", "bytes behind the request": "hello"} {
			t.Run(name, func(t *testing.T) {
				up, heads := tunnelled(t, switching)
				c := wireTo(t, through(t, up))
				first, fields, _ := c.askEarly(upgradeHead, early)
				assert.Equal(t, "HTTP/1.1 101 Switching Protocols", first)
				assert.Equal(t, []string{"Connection: Upgrade", "Upgrade: shout"}, fields)
				assert.Equal(t, "GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: shout\n\n", <-heads)
				converse(t, c, early)
			})
		}
	})
}

func TestTransparencyA14Connect(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		for name, tt := range map[string]struct{ answer, early string }{
			"tunnel":                    {established, ""},
			"bytes behind the request":  {established, "hello"},
			"many bytes behind it":      {established, strings.Repeat("x", 10_000)},
			"length is stripped":        {"HTTP/1.1 200 Connection established\r\nContent-Length: 3\r\n\r\n", "hello"},
			"encoding is stripped":      {"HTTP/1.1 200 Connection established\r\nTransfer-Encoding: chunked\r\n\r\n", ""},
			"after something temporary": {"HTTP/1.1 100 Continue\r\n\r\n" + established, ""},
		} {
			t.Run(name, func(t *testing.T) {
				up, heads := tunnelled(t, tt.answer)
				c := wireTo(t, through(t, up))
				first, fields, _ := c.askEarly(connectHead, tt.early)
				assert.Equal(t, "HTTP/1.1 200 OK", first)
				assert.Empty(t, fields)
				assert.Equal(t, connectHead, <-heads)
				converse(t, c, tt.early)
			})
		}
	})
}

func TestTransparencyA14ConnectRejected(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up, _ := application(t, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nno")
		c := wireTo(t, through(t, up))
		first, fields, body := c.askEarly(connectHead, "GET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n")
		assert.Equal(t, "HTTP/1.1 407 Proxy Authentication Required", first)
		assert.Equal(t, []string{"Connection: close", "Content-Length: 2", "Proxy-Authenticate: Basic"}, undated(fields))
		assert.Equal(t, "no", body)
	})
}

func TestTransparencyA15InvalidConnect(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it went through") }))
		proxy := through(t, up)
		for _, sent := range []string{
			"CONNECT / HTTP/1.1\nHost: web\n\n", "CONNECT http://web/ HTTP/1.1\nHost: web\n\n",
			"CONNECT http://web:80 HTTP/1.1\nHost: web\n\n", "CONNECT web:80 HTTP/1.0\n\n", "CONNECT web HTTP/1.1\nHost: web\n\n",
			"CONNECT web:0 HTTP/1.1\nHost: web:0\n\n", "CONNECT me@web:80 HTTP/1.1\nHost: web:80\n\n",
			"GET web:80 HTTP/1.1\nHost: web:80\n\n", "GET web HTTP/1.1\nHost: web\n\n", "GET 10.0.0.1:80 HTTP/1.1\nHost: a\n\n",
		} {
			c := wireTo(t, proxy)
			first, fields, _ := c.ask(sent)
			assert.Contains(t, first, " 400 Bad Request", sent)
			assert.Contains(t, fields, "Connection: close")
		}
		rsp, err := client(t, true).Do(&http.Request{
			Method: http.MethodConnect, URL: request(t, "GET", "http://"+proxy, "").URL, Host: "web:443",
		})
		require.NoError(t, err)
		assert.Equal(t, 400, rsp.StatusCode, "HTTP/2")
		read(t, rsp)
	})
}

func TestConnectFails(t *testing.T) {
	silent := conntest.Serve(t, func(_ int, conn net.Conn) { pipe(io.Discard, conn) })
	endless := conntest.Serve(t, func(_ int, conn net.Conn) {
		say(conn, "HTTP/1.1 200 OK\r\nX: ")
		pipe(conn, zeroBytes{})
	})
	gone := conntest.Serve(t, func(int, net.Conn) {})
	noTunnel := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200}, nil
	})
	noHeader := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusForbidden}, nil
	})
	for name, tt := range map[string]struct {
		svc    Service
		status string
	}{
		"refused":      {endpoint(t, refusedAddr(t)), "502 Bad Gateway"},
		"broken off":   {endpoint(t, gone), "502 Bad Gateway"},
		"endless head": {endpoint(t, endless), "502 Bad Gateway"},
		"no answer":    {NewStack().ResponseHeaderTimeout(50 * time.Millisecond).Service(endpoint(t, silent)), "504 Gateway Timeout"},
		"not a tunnel": {noTunnel, "502 Bad Gateway"},
		"no header":    {noHeader, "403 Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			c := wireTo(t, serve(t, Handler(tt.svc, WithConnect())))
			first, _, _ := c.ask(connectHead)
			assert.Equal(t, "HTTP/1.1 "+tt.status, first)
			c.over()
		})
	}
}

// A tunnel is a request in flight until it ends.
func TestDrainWaitsForTunnels(t *testing.T) {
	for name, tt := range map[string]struct{ head, answer string }{
		"connect": {connectHead, established}, "upgrade": {upgradeHead, switching},
	} {
		t.Run(name, func(t *testing.T) {
			up, _ := tunnelled(t, tt.answer)
			drainer := layer.NewDrainer()
			e := endpoint(t, up, WithMaxConns(1))
			c := wireTo(t, serve(t, Handler(NewStack().Drain(drainer).Service(e), WithConnect())))
			c.askEarly(tt.head, "")
			assert.EqualValues(t, 1, drainer.InFlight())
			done, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, drainer.Drain(done), "it does not wait, and does not cut")
			drained := make(chan error, 1)
			go func() { drained <- drainer.Drain(t.Context()) }()
			_, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
			require.ErrorIs(t, err, layer.ErrNotReady, "it takes the place of a connection")
			converse(t, c, "")
			require.NoError(t, <-drained)
		})
	}
}

// The end of the context of a request closes both sides of its tunnel.
func TestTunnelContextEnds(t *testing.T) {
	up, _ := tunnelled(t, established)
	ctx, cancel := context.WithCancel(t.Context())
	h := Handler(endpoint(t, up), WithConnect())
	c := wireTo(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(ctx))
	})))
	c.askEarly(connectHead, "hello")
	hear(t, c, "HELLO")
	cancel()
	_, _ = io.Copy(io.Discard, c.in) // until it is over
}

// CONNECT is rejected without WithConnect.
func TestConnectRejectedByDefault(t *testing.T) {
	up := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it went through") }))
	c := wireTo(t, serve(t, Handler(endpoint(t, up))))
	first, fields, _ := c.askEarly(connectHead, "GET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n")
	assert.Equal(t, "HTTP/1.1 501 Not Implemented", first)
	assert.Contains(t, fields, "Connection: close")
	c.over()
}

// If a tunnel is rejected, the bytes for it are never parsed as requests.
func TestConnectRejectionClosesConnection(t *testing.T) {
	for name, err := range map[string]error{
		"no route": layer.ErrNoRoute, "policy": &StatusError{Code: http.StatusForbidden}, "anything": io.ErrClosedPipe,
	} {
		t.Run(name, func(t *testing.T) {
			svc := serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
				assert.Equal(t, http.MethodConnect, r.Method, "it was smuggled")
				return nil, err
			})
			c := wireTo(t, serve(t, Handler(svc, WithConnect())))
			_, fields, _ := c.askEarly(connectHead, "GET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n")
			assert.Contains(t, fields, "Connection: close")
			c.over()
		})
	}
}

// A body of CONNECT might be the beginning of a tunnel.
func TestConnectRejectsBody(t *testing.T) {
	svc := serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
		t.Error("it went through")
		return nil, io.EOF
	})
	for _, framing := range []string{"Content-Length: 5", "Transfer-Encoding: chunked"} {
		c := wireTo(t, serve(t, Handler(svc, WithConnect())))
		first, fields, _ := c.ask("CONNECT web:443 HTTP/1.1\nHost: web:443\n" + framing + "\n\n")
		assert.Equal(t, "HTTP/1.1 400 Bad Request", first)
		assert.Contains(t, fields, "Connection: close")
	}
}
