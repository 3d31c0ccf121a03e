package h1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// A chunk of the largest size that follows another one is like any other chunk.
func TestLargestChunk(t *testing.T) {
	const chunks = "1\r\na\r\n7fffffffffffffff\r\nbcd"
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		io.CopyN(w, r.Body, 4)
	})})
	conn := dial(t, s.addr)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	assert.Equal(t, "abcd", readAll(t, answer))
	conn.Close()

	p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
	}))
	req, err := http.NewRequest("GET", "http://a/", nil)
	require.NoError(t, err)
	rsp, err := p.RoundTrip(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	b, err := io.ReadAll(rsp.Body)
	assert.Equal(t, "abcd", string(b))
	assert.Equal(t, io.ErrUnexpectedEOF, err)
}

// A client that does not read a 1xx response cannot stop the sweeper, which all connections
// share.
func TestServerUnreadInform(t *testing.T) {
	cfg := &message.ServerConfig{
		Log: slog.New(slog.DiscardHandler), Sweeper: new(sweep.Sweeper),
		WriteTimeout: 50 * time.Millisecond, HeaderTimeout: 200 * time.Millisecond,
	}
	cfg.Exchange = handled(func(_ http.ResponseWriter, r *http.Request) { io.ReadAll(r.Body) })
	connect := func() (net.Conn, <-chan struct{}) {
		conn, there := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = NewServerConn(t.Context(), there, cfg).Serve()
		}()
		t.Cleanup(func() {
			conn.Close()
			<-ended
		})
		return conn, ended
	}
	stuck, stuckEnded := connect()
	_, silentEnded := connect()
	io.WriteString(stuck, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
	limit := time.After(patience)
	for _, ended := range []<-chan struct{}{stuckEnded, silentEnded} {
		select {
		case <-ended:
		case <-limit:
			t.Fatal("a connection did not end at its time limit")
		}
	}
}

// The protocol may change only after the whole request was sent, because bytes of the body
// would otherwise be taken for bytes of the new protocol.
func TestProxySwitchBeforeEndOfBody(t *testing.T) {
	up := script(t, func(conn net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		io.Copy(io.Discard, r)
	})
	s, _ := proxy(t, up)
	conn := dial(t, s.addr)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 10\r\n\r\n01234")
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Empty(t, string(got))
}

func TestProxySwitchAfterBody(t *testing.T) {
	up := script(t, func(conn net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(req.Body)
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		conn.Write(body)
		io.Copy(conn, r)
	})
	s, _ := proxy(t, up)
	conn := dial(t, s.addr)
	r := bufio.NewReader(conn)
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 10\r\n\r\n01234")
	time.Sleep(10 * time.Millisecond) // the rest of the body is sent by the sender
	io.WriteString(conn, "56789tunnel")
	rsp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	b := make([]byte, len("0123456789tunnel"))
	_, err = io.ReadFull(r, b)
	require.NoError(t, err)
	assert.Equal(t, "0123456789tunnel", string(b))
}

// The write timeout counts from the last progress, also within one large Write.
func TestServerWriteTimeoutOfLargeWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		cfg := &message.ServerConfig{Log: slog.New(slog.DiscardHandler), Sweeper: new(sweep.Sweeper), WriteTimeout: 3 * time.Second}
		cfg.Exchange = handled(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1048576")
			assert.NoError(t, http.NewResponseController(w).Flush())
			w.Write(bytes.Repeat([]byte("x"), size))
		})
		conn, there := net.Pipe()
		defer conn.Close()
		go func() { _ = NewServerConn(t.Context(), there, cfg).Serve() }()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		rsp, err := http.ReadResponse(bufio.NewReaderSize(conn, 4096), nil)
		require.NoError(t, err)
		total := 0
		for b := make([]byte, 64<<10); total < size; {
			n, err := io.ReadFull(rsp.Body, b[:min(len(b), size-total)])
			require.NoError(t, err)
			total += n
			time.Sleep(time.Second)
		}
	})
}

// A request is not lost on a connection that has not sent any request and that the server has closed.
func TestClientStaleBeforeFirstUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, rest := range map[string]func(*ClientConn, *http.Request) error{
		"no request":      func(c *ClientConn, _ *http.Request) error { c.Rest(); return nil },
		"invalid request": func(c *ClientConn, r *http.Request) error { r.Method = "A B"; _, err := c.RoundTrip(r); return err },
		"ended context":   func(c *ClientConn, r *http.Request) error { _, err := c.RoundTrip(r.WithContext(ended)); return err },
	} {
		for _, body := range []string{"", "body"} {
			t.Run(name, func(t *testing.T) {
				nc, err := net.Dial("tcp", l.Addr().String())
				require.NoError(t, err)
				there, err := l.Accept()
				require.NoError(t, err)
				reusable := true
				c := NewClientConn(nc, func(_ *ClientConn, r bool) { reusable = r })
				defer c.Close()
				req, err := http.NewRequest("POST", "http://a/", nil)
				require.NoError(t, err)
				assert.NotErrorIs(t, rest(c, req), message.ErrNotSent)
				assert.True(t, reusable)
				there.Close()
				require.Eventually(t, c.readable, patience, time.Millisecond)
				req, err = http.NewRequest("POST", "http://a/", strings.NewReader(body))
				require.NoError(t, err)
				_, err = c.RoundTrip(req)
				assert.ErrorIs(t, err, message.ErrNotSent)
			})
		}
	}
}

// An exchange that accepts a tunnel without a connection ends the connection. The client could
// otherwise send requests in the tunnel that no proxy before the server has seen.
func TestServerServesNoRequestsInTunnel(t *testing.T) {
	s := serve(t, &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		if upgrade := r.Header.Get("Upgrade"); upgrade != "" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", upgrade)
			w.WriteHeader(http.StatusSwitchingProtocols)
		}
	})})
	for _, request := range []string{
		"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
	} {
		got := exchangeRaw(t, s.addr, request+"GET /secret HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		assert.NotContains(t, got, "HTTP/1.1 200 OK", got)
	}
}

// wrapped has the methods of a TCP connection, but sends other bytes.
type wrapped struct {
	*net.TCPConn
	written int
}

func (c *wrapped) Write(p []byte) (int, error) {
	c.written += len(p)
	return c.TCPConn.Write(p)
}

// A connection that embeds a TCP connection may encrypt, so its methods must not be bypassed.
func TestClientUsesWrapper(t *testing.T) {
	addr := upstream(t, func(http.ResponseWriter, *http.Request) {})
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	conn := &wrapped{TCPConn: nc.(*net.TCPConn)}
	c := NewClientConn(conn, func(*ClientConn, bool) {})
	defer c.Close()
	req, err := http.NewRequest("GET", "http://"+addr+"/", nil)
	require.NoError(t, err)
	rsp, err := c.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.NotZero(t, conn.written)
}
