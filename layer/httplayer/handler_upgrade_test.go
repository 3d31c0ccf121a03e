package httplayer

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // a client of extended CONNECT

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// upgraded sends a request to upgrade its connection.
func upgraded(t *testing.T, svc Service) (*http.Response, io.ReadWriteCloser) {
	t.Helper()
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	rsp, err := svc.Call(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	both, ok := rsp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	return rsp, both
}

// net/http reports length 0 for a 101. It is in flight until the connection is closed, and
// its context lives as long.
func TestUpgradeConnectionEnds(t *testing.T) {
	leaf := endpoint(t, serve(t, http.HandlerFunc(switchToEcho)))
	svc := NewStack().Limit(1).ResponseHeaderTimeout(time.Minute).Service(leaf)
	rsp, both := upgraded(t, svc)
	_, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
	require.Error(t, err, "one is in flight")
	assert.NoError(t, rsp.Request.Context().Err())
	say(both, "hello")
	got := make([]byte, 5)
	_, err = io.ReadFull(both, got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	require.NoError(t, both.Close())
	rsp, err = svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
	require.NoError(t, err)
	read(t, rsp)
}

func TestTeeBodyUpgrade(t *testing.T) {
	rsp, _ := upgraded(t, endpoint(t, serve(t, http.HandlerFunc(switchToEcho))))
	var c teeRecorder
	both, ok := HTTP{}.TeeResponseBody(rsp, c.read).Body.(io.ReadWriteCloser)
	require.True(t, ok)
	say(both, "hello")
	require.NoError(t, both.(halfCloser).CloseWrite())
	got, err := io.ReadAll(both)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	assert.Equal(t, "hello", c.String())
	require.NoError(t, both.Close())
}

// An upgraded connection is open until both directions have ended. The server may end its direction
// first, and still receives the bytes of the client.
func TestUpgradeServerEndsFirst(t *testing.T) {
	received := make(chan string, 1)
	up := conntest.Serve(t, func(_ int, conn net.Conn) {
		_, err := http.ReadRequest(bufio.NewReader(conn))
		assert.NoError(t, err)
		say(conn, switching+"bye")
		assert.NoError(t, conn.(halfCloser).CloseWrite())
		got, _ := io.ReadAll(conn)
		received <- string(got)
	})
	svc := NewStack().Limit(1).ResponseHeaderTimeout(time.Minute).Service(endpoint(t, up))
	rsp, both := upgraded(t, svc)
	got, err := io.ReadAll(both)
	require.NoError(t, err)
	assert.Equal(t, "bye", string(got))
	require.NoError(t, rsp.Request.Context().Err())
	require.Error(t, layer.Poll(svc), "one is in flight")
	say(both, "late")
	require.NoError(t, both.(halfCloser).CloseWrite())
	assert.Equal(t, "late", <-received)
	require.NoError(t, both.Close())
	require.NoError(t, layer.Poll(svc))
}

func upgradeRequest(t testing.TB) *http.Request {
	t.Helper()
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	return req
}

// Upgrades do not exceed the maximum number of connections.
func TestUpgradeMaxConns(t *testing.T) {
	r := &slowDialer{by: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			switchToEcho(w, r)
		}
	}))
	e := endpoint(t, addr, WithMaxConns(2), WithDialContext(r.DialContext))
	var clients sync.WaitGroup
	for n := range 6 {
		clients.Go(func() {
			for done := 0; done < 100; {
				if !assert.NoError(t, e.Ready(t.Context())) {
					return
				}
				req := request(t, http.MethodGet, "http://web/", "")
				if n%2 == 0 {
					req = upgradeRequest(t)
				}
				rsp, err := e.Call(t.Context(), req)
				if errors.Is(err, layer.ErrNotReady) {
					continue // another connection used it first
				}
				if !assert.NoError(t, err) {
					return
				}
				if both, ok := rsp.Body.(io.ReadWriter); ok {
					assert.True(t, hears(both, "hello"))
				}
				assert.NoError(t, rsp.Body.Close())
				done++
			}
		})
	}
	clients.Wait()
	_, _, most := r.state()
	assert.LessOrEqual(t, most, 2)
}

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
	s := newServerFor(handler)
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

// An unusable 101 is a failure of the endpoint and does not leak a connection.
func TestUpgradeUnusable101(t *testing.T) {
	const plain = "GET / HTTP/1.1\nHost: web\n\n"
	for name, tt := range map[string]struct{ head, answer string }{
		"unasked":         {plain, "Connection: Upgrade\r\nUpgrade: other\r\n"},
		"to nothing":      {plain, ""},
		"asked, other":    {upgradeHead, "Connection: Upgrade\r\nUpgrade: other\r\n"},
		"none of several": {severalHead, "Connection: Upgrade\r\nUpgrade: other\r\n"},
		"more than asked": {upgradeHead, "Connection: Upgrade\r\nUpgrade: shout, other\r\n"},
		"asked, bad":      {upgradeHead, "Connection: Upgrade\r\nUpgrade: sh\xf6ut\r\n"},
		"asked, none":     {upgradeHead, ""},
		"to CONNECT":      {connectHead, "Connection: Upgrade\r\nUpgrade: other\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, func(_ int, c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					say(c, "HTTP/1.1 101 Switching Protocols\r\n"+tt.answer+"\r\n")
					pipe(io.Discard, c)
				}
			})
			e, d := endpoint(t, addr, WithMaxConns(1)), layer.NewDrainer()
			front := serve(t, Handler(NewStack().Drain(d).Service(e), WithConnect()))
			for range 3 {
				c := wireTo(t, front)
				first, _, _ := c.ask(tt.head)
				assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
				require.Eventually(t, func() bool { return e.Describe().State.Get("in_flight") == 0 }, patience, time.Millisecond)
				assert.Zero(t, d.InFlight())
			}
		})
	}
}

// The end of the context frees an upgraded connection, even if its body is not closed.
func TestUpgradeContextFreesConnection(t *testing.T) {
	for name, tt := range map[string]struct{ head, answer string }{
		"connect": {connectHead, established}, "upgrade": {upgradeHead, switching},
	} {
		t.Run(name, func(t *testing.T) {
			up, _ := tunnelled(t, tt.answer)
			e := endpoint(t, up, WithMaxConns(1))
			for range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(tt.head, "\n", "\r\n"))))
				require.NoError(t, err)
				rsp, err := e.Call(ctx, req)
				require.NoError(t, err)
				assert.Equal(t, 1, e.Describe().State.Get("in_flight"))
				cancel()
				require.Eventually(t, func() bool { return e.Describe().State.Get("in_flight") == 0 }, patience, time.Millisecond)
				_ = rsp.Body.Close() // counts for nothing
				assert.Equal(t, 0, e.Describe().State.Get("connections"))
			}
		})
	}
}

// A 101 without a connection as its body, or for a client without a connection, is closed.
func TestUpgradeUntaken101Closed(t *testing.T) {
	both := &upgradedBody{Reader: strings.NewReader(""), closed: make(chan struct{})}
	closed := make(chan struct{})
	for name, tt := range map[string]struct {
		body   io.ReadCloser
		closed chan struct{}
		status int
	}{
		"body":   {onClose(sync.OnceFunc(func() { close(closed) })), closed, http.StatusBadGateway},
		"client": {both, both.closed, http.StatusBadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			h := Handler(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: http.StatusSwitchingProtocols, Body: tt.body, Request: r,
					Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}},
				}, nil
			}))
			r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "x")
			h.ServeHTTP(w, r)
			assert.Equal(t, tt.status, w.Code)
			select {
			case <-tt.closed:
			case <-time.After(patience):
				require.Fail(t, "it is still open")
			}
		})
	}
}

// An upgrade to an unprintable protocol is an error of the client.
func TestUpgradeUnprintable(t *testing.T) {
	answers := Middleware(func(Service) Service {
		return serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
			return HTTP{}.NewResponse(r, layer.DirectResponse{Status: http.StatusForbidden}), nil
		})
	})
	for name, h := range map[string]http.Handler{
		"handler": Handler(serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
			t.Error("it went through")
			return nil, io.EOF
		})),
		"middleware": answers(http.NotFoundHandler()),
	} {
		t.Run(name, func(t *testing.T) {
			c := wireTo(t, serve(t, h))
			first, _, _ := c.ask("GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: sh\xf6ut\n\n")
			assert.Equal(t, "HTTP/1.1 400 Bad Request", first)
			c.over()
		})
	}
}

// A client of an upgraded connection may disconnect while the response header is being
// changed. Observers read their own header.
func TestUpgradeClientLeavesAtOnce(t *testing.T) {
	for range 50 {
		ctx, leave := context.WithCancel(t.Context())
		body := &upgradedBody{Reader: strings.NewReader(""), closed: make(chan struct{})}
		svc := NewStack().Metrics(layer.Instruments{}).Service(layer.Func[*http.Request, *http.Response](
			func(_ context.Context, r *http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1,
					Header: http.Header{"Upgrade": {"x"}, "Connection": {"Upgrade"}}, Body: body, Request: r,
				}, nil
			}))
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://web/", nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "x")
		w := &hijackedWriter{header: http.Header{}, leave: leave, left: body.closed}
		Handler(svc).ServeHTTP(w, r)
		require.NotNil(t, w.conn, "it was upgraded")
		require.NoError(t, w.conn.Close())
		leave()
	}
}

// upgradedBody is the upstream's side of an upgraded connection.
type upgradedBody struct {
	io.Reader
	once   sync.Once
	closed chan struct{}
}

func (*upgradedBody) Write(p []byte) (int, error) { return len(p), nil }

func (b *upgradedBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// hijackedWriter is a hijacked writer. The client disconnects when its Header method is
// called.
type hijackedWriter struct {
	header http.Header
	conn   net.Conn
	leave  context.CancelFunc
	left   chan struct{}
}

func (w *hijackedWriter) Header() http.Header {
	if w.conn != nil {
		w.leave()
		<-w.left
	}
	return w.header
}

func (*hijackedWriter) WriteHeader(int)             {}
func (*hijackedWriter) Write(p []byte) (int, error) { return len(p), nil }

func (w *hijackedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	w.conn = near
	return near, bufio.NewReadWriter(bufio.NewReader(near), bufio.NewWriter(near)), nil
}

// CONNECT has no body. If it has one, the service that admits the request closes it.
func TestConnectClosesRequestBody(t *testing.T) {
	yes, _ := tunnelled(t, established)
	hangsUp := conntest.Serve(t, func(int, net.Conn) {})
	for name, addr := range map[string]string{"tunnel": yes, "failure": hangsUp} {
		t.Run(name, func(t *testing.T) {
			body := &asked{Reader: strings.NewReader("hello")}
			req := request(t, http.MethodConnect, "http://web:443", "")
			req.Body, req.ContentLength = body, 5
			e := endpoint(t, addr, WithConnectTimeout(patience))
			rsp, err := e.Call(t.Context(), req)
			if name == "tunnel" {
				require.NoError(t, err)
				rsp.Body.Close()
			} else {
				require.Error(t, err)
			}
			assert.EqualValues(t, 1, body.closes.Load())
			assert.Zero(t, body.reads.Load())
		})
	}
	t.Run("refusal", func(t *testing.T) {
		body := &asked{Reader: strings.NewReader("hello")}
		req := request(t, http.MethodConnect, "http://web:443", "")
		req.Body = body
		e := endpoint(t, "10.0.0.1:80", WithDialContext(func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }))
		_, err := e.Call(t.Context(), req)
		require.ErrorIs(t, err, layer.ErrNotReady)
		assert.Zero(t, body.closes.Load())
	})
}

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

func TestExtendedConnectOtherProtocol(t *testing.T) {
	for name, opts := range map[string][]HandlerOption{"": nil, "with CONNECT": {WithConnect()}} {
		t.Run(name, func(t *testing.T) {
			rsp, err := Handler(endpoint(t, "127.0.0.1:1"), opts...).(*handler).serve(&http.Request{
				Method: http.MethodConnect, ProtoMajor: 2, Header: http.Header{":protocol": {"connect-udp"}}, URL: new(url.URL),
			})
			require.NoError(t, err)
			assert.Equal(t, http.StatusNotImplemented, rsp.StatusCode)
		})
	}
}

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
	s := NewServer(stack.Service(ws.e), WithHeaderTimeout(time.Second), WithMinBodyRate(time.Second, 1000),
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
