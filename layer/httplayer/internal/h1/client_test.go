package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// script is a server that handles each connection by a function.
func script(t testing.TB, handle func(conn net.Conn, r *bufio.Reader)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				handle(conn, bufio.NewReader(conn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// answer is a server that answers each request with text.
func answer(t testing.TB, text string) string {
	return script(t, func(conn net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(conn, text)
			if strings.Contains(text, "\r\n\r\nuntil close") {
				return
			}
		}
	})
}

func get(t testing.TB, ctx context.Context, p *pool) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a/", nil)
	require.NoError(t, err)
	return p.RoundTrip(req)
}

func TestClientResponses(t *testing.T) {
	for name, tt := range map[string]struct {
		response, want string
		reusable       bool
	}{
		"length":                {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", true},
		"no reason":             {"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc", "abc", true},
		"empty reason":          {"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", "", true},
		"chunked":               {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n2;x\r\nbc\r\n0\r\n\r\n", "abc", true},
		"until close":           {"HTTP/1.1 200 OK\r\n\r\nuntil close", "until close", false},
		"HTTP/1.0":              {"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", false},
		"HTTP/1.0 keep-alive":   {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", "abc", true},
		"closes":                {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", "abc", false},
		"no content":            {"HTTP/1.1 204 No\r\n\r\n", "", true},
		"informed":              {"HTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 100\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "a", true},
		"unsolicited":           {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\n", "abc", false},
		"no content with body":  {"HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\nabc", "", false},
		"short":                 {"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nuntil close", "body", false},
		"bad chunk":             {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", "body", false},
		"malformed first chunk": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nuntil close", "error", false},
		"bare LF":               {"HTTP/1.1 200 OK\nContent-Length: 1\n\na", "a", true},
		"empty lines":           {"\r\n\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "a", true},
		"two spaces":            {"HTTP/1.1  200 OK\r\nContent-Length: 1\r\n\r\na", "a", true},
		"HTTP/1.2":              {"HTTP/1.2 200 OK\r\nContent-Length: 1\r\n\r\na", "a", true},
		"blanks of a chunk":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0001 \t;a=\"b\"\r\na\r\n000\t\r\nB: c\n\n", "a", true},
		"LF after a chunk":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n", "body", false},
		"no line end":           {"nothing", "error", false},
		"folded":                {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n", "error", false},
		"two lengths":           {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 01\r\n\r\na", "a", true},
		"different lengths":     {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 0\r\n\r\na", "error", false},
		"a list of lengths":     {"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\na", "error", false},
		"two framings":          {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "a", false},
		"chunked in HTTP/1.0":   {"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "error", false},
		"gzip":                  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "error", false},
		"HTTP/2":                {"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", "", true},
		"no HTTP":               {"SSH-2.0-OpenSSH\r\n\r\n", "error", false},
		"short status":          {"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", "error", false},
		"low status":            {"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n", "error", false},
		"many informs":          {strings.Repeat("HTTP/1.1 103 Early\r\n\r\n", 1000) + "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "a", true},
		"endless informs":       {strings.Repeat("HTTP/1.1 100 Go\r\nA: "+strings.Repeat("a", 900)+"\r\n\r\n", 2000), "error", false},
		"unasked switch":        {"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "error", false},
		"large":                 {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 2<<20), "error", false},
		"field without name":    {"HTTP/1.1 200 OK\r\n: b\r\nContent-Length: 0\r\n\r\n", "error", false},
		"NUL":                   {"HTTP/1.1 200 OK\r\nA: b\x00\r\nContent-Length: 0\r\n\r\n", "error", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, answer(t, tt.response))
			rsp, err := get(t, t.Context(), p)
			if tt.want == "error" {
				require.Error(t, err)
				assert.NotErrorIs(t, err, message.ErrNotSent)
			} else {
				require.NoError(t, err)
				b, err := io.ReadAll(rsp.Body)
				assert.Equal(t, tt.want == "body", err != nil, "%v", err)
				if err == nil {
					assert.Equal(t, tt.want, string(b))
				}
				require.NoError(t, rsp.Body.Close())
			}
			_, released, idle := p.counts()
			assert.Equal(t, 1, released)
			assert.Equal(t, tt.reusable, idle == 1)
		})
	}
}

func TestClientRequests(t *testing.T) {
	reader := func(s string) io.ReadCloser { return io.NopCloser(io.MultiReader(strings.NewReader(s))) }
	for name, tt := range map[string]struct {
		req  http.Request
		want string
	}{
		"GET":        {http.Request{Method: "GET", URL: &url.URL{Host: "a", Path: "/b c", RawQuery: "d"}}, "GET /b%20c?d HTTP/1.1\r\nHost: a\r\n\r\n"},
		"no path":    {http.Request{Method: "GET", URL: &url.URL{Host: "a", RawQuery: "d"}}, "GET /?d HTTP/1.1\r\nHost: a\r\n\r\n"},
		"asterisk":   {http.Request{Method: "OPTIONS", URL: &url.URL{Host: "a", Path: "*"}}, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"},
		"opaque":     {http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: "a", Opaque: "/b%2Fc", RawQuery: "d"}}, "GET /b%2Fc?d HTTP/1.1\r\nHost: a\r\n\r\n"},
		"Host":       {http.Request{Method: "GET", Host: "b", URL: &url.URL{Host: "a"}}, "GET / HTTP/1.1\r\nHost: b\r\n\r\n"},
		"absolute":   {http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: "a", Path: "/b"}, RequestURI: "http://a/b"}, "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n"},
		"CONNECT":    {http.Request{Method: "CONNECT", URL: &url.URL{Host: "a:1"}, Header: http.Header{"Content-Length": {"1"}}}, "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"},
		"HTTP/1.0":   {http.Request{Method: "GET", URL: &url.URL{Path: "/"}, RequestURI: "/", ProtoMajor: 1, ProtoMinor: 0}, "GET / HTTP/1.0\r\n\r\n"},
		"empty POST": {http.Request{Method: "POST", URL: &url.URL{Host: "a"}, Body: http.NoBody}, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"},
		"length 0":   {http.Request{Method: "GET", URL: &url.URL{Host: "a"}, RequestURI: "/", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Length": {"0"}}}, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"},
		"field, GET": {http.Request{Method: "GET", URL: &url.URL{Host: "a"}, Header: http.Header{"Content-Length": {"5"}}}, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
		"field, PUT": {http.Request{Method: "PUT", URL: &url.URL{Host: "a"}, Body: reader("abc"), Header: http.Header{"Content-Length": {"0"}}}, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n0\r\n\r\n"},
		"in chunks":  {http.Request{Method: "PUT", URL: &url.URL{Host: "a"}, Body: reader("abc"), ContentLength: 3, TransferEncoding: []string{"chunked"}}, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n0\r\n\r\n"},
		"length":     {http.Request{Method: "PUT", URL: &url.URL{Host: "a"}, Body: reader("abc"), ContentLength: 3}, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"},
		"chunked":    {http.Request{Method: "PUT", URL: &url.URL{Host: "a"}, Body: reader("abc"), Trailer: http.Header{"T": {"1"}}}, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n0003\r\nabc\r\n0\r\nT: 1\r\n\r\n"},
		"hop":        {http.Request{Method: "GET", URL: &url.URL{Host: "a"}, Header: http.Header{"Connection": {"x"}, "X": {"1"}, "transfer-encoding": {"chunked"}, "Te": {"trailers"}}}, "GET / HTTP/1.1\r\nHost: a\r\nConnection: TE\r\nTe: trailers\r\n\r\n"},
		"upgrade":    {http.Request{Method: "GET", URL: &url.URL{Host: "a"}, Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}}, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"},
		"close":      {http.Request{Method: "GET", URL: &url.URL{Host: "a"}, Close: true}, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			p := newPool(t, script(t, func(conn net.Conn, _ *bufio.Reader) {
				b := make([]byte, len(tt.want))
				io.ReadFull(conn, b)
				got <- string(b)
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}))
			rsp, err := p.RoundTrip(&tt.req)
			require.NoError(t, err)
			rsp.Body.Close()
			assert.Equal(t, tt.want, <-got)
		})
	}
}

// closeCounter is a body that counts its Close calls.
type closeCounter struct {
	io.Reader
	mu     sync.Mutex
	closes int
}

func (c *closeCounter) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closes++
	return nil
}

func (c *closeCounter) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closes > 0
}

func TestClientInvalidRequests(t *testing.T) {
	p := newPool(t, answer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	for name, edit := range map[string]func(*http.Request){
		"method":         func(r *http.Request) { r.Method = "A B" },
		"host":           func(r *http.Request) { r.Host = "a\r\nb" },
		"host with path": func(r *http.Request) { r.Host = "a/b" },
		"field name":     func(r *http.Request) { r.Header = http.Header{"a b": {"c"}} },
		"field value":    func(r *http.Request) { r.Header = http.Header{"A": {"b\r\nc: d"}} },
		"query":          func(r *http.Request) { r.URL.RawQuery = "a b" },
		"upgrade":        func(r *http.Request) { r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"a\nb"}} },
		"CONNECT":        func(r *http.Request) { r.Method = "CONNECT" },
	} {
		t.Run(name, func(t *testing.T) {
			body := &closeCounter{Reader: strings.NewReader("a")}
			req, err := http.NewRequest(http.MethodPost, "http://a/", body)
			require.NoError(t, err)
			edit(req)
			_, err = p.RoundTrip(req)
			_, ok := errors.AsType[*message.RequestError](err)
			assert.True(t, ok, "%v", err)
			assert.NotErrorIs(t, err, message.ErrNotSent)
			assert.True(t, body.closed())
		})
	}
	dials, released, idle := p.counts()
	assert.Equal(t, []int{1, 8, 1}, []int{dials, released, idle})
}

func TestClientStale(t *testing.T) {
	closeIt := make(chan struct{}, 1)
	closed := make(chan struct{})
	var extra string
	p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
		_, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-closeIt
		if extra != "" {
			io.WriteString(conn, extra)
		} else {
			conn.Close()
		}
		closed <- struct{}{}
		io.Copy(io.Discard, conn)
	}))
	dial, hidden := p.dial, false
	p.dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if hidden {
			conn = struct{ net.Conn }{conn} // without access to its socket
		}
		return conn, err
	}
	for i := range 8 {
		hidden, extra = i >= 4, ""
		if i%4 < 2 {
			extra = "HTTP/1.1 408 Timeout\r\n\r\n"
		}
		_, err := get(t, t.Context(), p)
		require.NoError(t, err)
		c, err := p.get(t.Context())
		require.NoError(t, err)
		assert.False(t, c.Stale())
		closeIt <- struct{}{}
		<-closed
		require.Eventually(t, c.Stale, patience, time.Millisecond)
		body := &closeCounter{Reader: strings.NewReader("a")}
		req, err := http.NewRequest(http.MethodPost, "http://a/", body)
		require.NoError(t, err)
		if i%2 == 0 {
			req.Method, req.Body = http.MethodGet, nil
		}
		_, err = c.RoundTrip(req)
		require.ErrorIs(t, err, message.ErrNotSent)
		assert.False(t, body.closed())
	}
	_, released, idle := p.counts()
	assert.Equal(t, []int{16, 0}, []int{released, idle})
}

// closing is a request body in memory. Its Read runs a function.
type closing struct{ read func() }

func (closing) Pending() (n int, eof bool) { return 1, false }
func (closing) Close() error               { return nil }

func (c closing) Read(p []byte) (int, error) {
	c.read()
	return copy(p, "a"), io.EOF
}

// The server closes its sending half after the check of the connection and before the first write.
// The poller then reports the end of the stream only once.
func TestClientStaleDuringRequest(t *testing.T) {
	conns := make(chan net.Conn, 1)
	p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		conns <- conn
		io.Copy(io.Discard, r)
	}))
	_, err := get(t, t.Context(), p)
	require.NoError(t, err)
	c, err := p.get(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/", closing{func() {
		(<-conns).(*net.TCPConn).CloseWrite()
		require.Eventually(t, c.readable, patience, time.Millisecond)
	}})
	require.NoError(t, err)
	_, err = c.RoundTrip(req)
	require.ErrorIs(t, err, errServerClosed)
	if c.sock.exists() { // otherwise the request is written before the end is seen
		require.ErrorIs(t, err, message.ErrNotSent)
	}
}

// The headers of a request do not fit into the buffer of the socket.
func TestClientShortWrite(t *testing.T) {
	long := strings.Repeat("a", 300<<10)
	p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n%6d", len(req.Header.Get("Long")))
		}
	}))
	dial := p.dial
	p.dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err == nil {
			conn.(*net.TCPConn).SetWriteBuffer(1)
		}
		return conn, err
	}
	for range 2 {
		req, err := http.NewRequest(http.MethodGet, "http://a/", nil)
		require.NoError(t, err)
		req.Header.Set("Long", long)
		rsp, err := p.RoundTrip(req)
		require.NoError(t, err)
		b, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		assert.Equal(t, "307200", string(b))
	}
}

func TestClientCancel(t *testing.T) {
	reason := errors.New("reason")
	begin := "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"
	for name, text := range map[string]string{"before": "", "in headers": begin[:20], "in body": begin} {
		for _, own := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				sent := make(chan struct{}, 1)
				p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
					http.ReadRequest(r)
					io.WriteString(conn, text)
					sent <- struct{}{}
					io.Copy(io.Discard, r)
				}))
				ctx, cancel := context.WithCancelCause(t.Context())
				if own {
					c := reqctx.New(t.Context(), 0, nil)
					ctx, cancel = c, c.Cancel
				}
				go func() { <-sent; cancel(reason) }()
				rsp, err := get(t, ctx, p)
				if text == begin {
					if err == nil {
						_, err = io.ReadAll(rsp.Body)
						rsp.Body.Close()
					}
				}
				assert.Equal(t, reason, err)
				_, released, idle := p.counts()
				assert.Equal(t, []int{1, 0}, []int{released, idle})
				c, err := p.get(t.Context())
				require.NoError(t, err)
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a/", nil)
				require.NoError(t, err)
				_, err = c.RoundTrip(req)
				assert.Equal(t, reason, err)
				_, _, idle = p.counts()
				assert.Equal(t, 1, idle, "an ended context leaves the connection alone")
			})
		}
	}
}

func TestClientAbandonedBody(t *testing.T) {
	p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
		io.Copy(io.Discard, r)
	}))
	rsp, err := get(t, t.Context(), p)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(rsp.Body)
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, rsp.Body.Close())
	require.Error(t, <-done)
	_, released, idle := p.counts()
	assert.Equal(t, []int{1, 0}, []int{released, idle})
}

func TestClientBodyErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		body   io.Reader
		length int64
		want   string
	}{
		"fails": {io.MultiReader(strings.NewReader("abc"), failing{}), 10, "fails"},
		"short": {strings.NewReader("abc"), 4, message.ErrShortBody.Error()},
		"long":  {strings.NewReader("abc"), 2, message.ErrLongBody.Error()},
		"panic": {panicking{}, 10, "odd"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, script(t, func(_ net.Conn, r *bufio.Reader) { io.Copy(io.Discard, r) }))
			body := &closeCounter{Reader: tt.body}
			req, err := http.NewRequest(http.MethodPost, "http://a/", body)
			require.NoError(t, err)
			req.ContentLength = tt.length
			_, err = p.RoundTrip(req)
			require.ErrorContains(t, err, tt.want)
			require.Eventually(t, body.closed, patience, time.Millisecond)
			_, released, idle := p.counts()
			assert.Equal(t, []int{1, 0}, []int{released, idle})
		})
	}
}

// The response arrives while the request is sent, and its end cuts the request.
func TestClientEarlyResponse(t *testing.T) {
	p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(conn, "HTTP/1.1 413 Large\r\nContent-Length: 3\r\n\r\nabc")
		io.Copy(io.Discard, r)
	}))
	pr, pw := io.Pipe()
	req, err := http.NewRequest(http.MethodPost, "http://a/", pr)
	require.NoError(t, err)
	go io.Copy(pw, zeros{})
	rsp, err := p.RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, "abc", readAll(t, rsp))
	_, err = pw.Write([]byte("a"))
	require.Error(t, err, "the request body is closed")
	_, released, idle := p.counts()
	assert.Equal(t, []int{1, 0}, []int{released, idle})
}

func TestClientExpect(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first, body string
		least       time.Duration
	}{
		"asked":   {"HTTP/1.1 100 Continue\r\n\r\n", "hello", 0},
		"timeout": {"", "hello", time.Duration(message.ContinueTimeout.Load())},
		"refused": {"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			p := newPool(t, script(t, func(conn net.Conn, r *bufio.Reader) {
				http.ReadRequest(r)
				io.WriteString(conn, tt.first)
				b := make([]byte, 5)
				n, _ := io.ReadFull(r, b)
				got <- string(b[:n])
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				io.Copy(io.Discard, r)
			}))
			var informed []int
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
				informed = append(informed, code)
				return nil
			}})
			body := &closeCounter{Reader: strings.NewReader("hello")}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/", body)
			require.NoError(t, err)
			req.ContentLength = 5
			req.Header.Set("Expect", "100-continue")
			begin := time.Now()
			rsp, err := p.RoundTrip(req)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, time.Since(begin), tt.least)
			rsp.Body.Close()
			assert.Equal(t, tt.body, <-got)
			assert.Equal(t, name == "asked", len(informed) == 1)
			require.Eventually(t, body.closed, patience, time.Millisecond)
			_, released, idle := p.counts()
			assert.Equal(t, 1, released)
			assert.Equal(t, name != "refused", idle == 1)
		})
	}
}

func TestClientClose(t *testing.T) {
	p := newPool(t, script(t, func(_ net.Conn, r *bufio.Reader) { io.Copy(io.Discard, r) }))
	c, err := p.get(t.Context())
	require.NoError(t, err)
	req, err := http.NewRequest(http.MethodGet, "http://a/", nil)
	require.NoError(t, err)
	go func() { time.Sleep(10 * time.Millisecond); c.Close() }()
	_, err = c.RoundTrip(req)
	assert.Equal(t, errClosed, err)
	assert.True(t, c.Stale())
}
