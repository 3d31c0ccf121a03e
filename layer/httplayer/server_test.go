package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client
	"golang.org/x/net/http2/hpack"  //nolint:depguard // of the raw client
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/h1"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
)

// patience is what no test waits for, unless something is wrong.
const patience = 30 * time.Second

// front is a Server behind everything that stands before it in a proxy.
type front struct {
	*Server
	addr   string
	drain  context.CancelFunc // as SIGTERM does
	served chan error
}

// newServerFor returns a Server that serves requests as h does, which may be a Handler.
func newServerFor(h http.Handler, opts ...ServerOption) *Server {
	own, ok := h.(*handler)
	if !ok {
		return NewServer(FromHandler(h), opts...)
	}
	same := HandlerOption(func(to *handler) {
		to.log, to.tunnels, to.closes, to.onError, to.onEnd = own.log, own.tunnels, own.closes, own.onError, own.onEnd
		to.textField, to.closeField = own.textField, own.closeField
	})
	return NewServer(own.svc, append([]ServerOption{same}, opts...)...)
}

// handledBy returns a Service that h serves.
func handledBy(h http.HandlerFunc) Service { return FromHandler(h) }

// logged returns a Handler that calls h, with an access log.
func logged(h http.Handler, output io.Writer, format AccessLogFormat) http.Handler {
	return Handler(FromHandler(h), WithConnect(), WithAccessLog(output, format, nil))
}

// servingBy serves h until the test ends.
func servingBy(t testing.TB, h http.Handler, opts ...ServerOption) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return servingOn(t, l, h, 0, opts...)
}

// servingOn serves h on l. It closes connections when the test ends, or grace after the drain.
func servingOn(t testing.TB, l net.Listener, h http.Handler, grace time.Duration, opts ...ServerOption) *front {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &front{addr: l.Addr().String(), drain: cancel, served: make(chan error, 1)}
	f.Server = newServerFor(h, append([]ServerOption{WithDrainOnDone(ctx)}, opts...)...)
	svc := tcplayer.Detect(tcplayer.Protocols{HTTP1: f.Server, HTTP2: f.Server, Opaque: f.Server})
	go func() { f.served <- tcplayer.Serve(ctx, l, svc, tcplayer.WithShutdownTimeout(grace)) }()
	t.Cleanup(func() {
		cancel()
		<-f.served
	})
	return f
}

// over waits for the end of everything.
func (f *front) over(t testing.TB) error {
	t.Helper()
	select {
	case err := <-f.served:
		f.served <- err
		return err
	case <-time.After(patience):
		require.Fail(t, "it still serves")
		return nil
	}
}

// callOn gives one end of a connection to s, and returns the other.
func callOn(t testing.TB, ctx context.Context, s *Server) (client net.Conn, done <-chan result2) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	require.NoError(t, client.SetDeadline(time.Now().Add(patience)))
	conn, err := l.Accept()
	require.NoError(t, err)
	over := make(chan result2, 1)
	go func() {
		traffic, err := s.Call(ctx, conn)
		over <- result2{traffic, err}
	}()
	return client, over
}

// result2 is what Call returned.
type result2 struct {
	tcplayer.ByteCount
	err error
}

// A response of a ReverseProxy whose upstream fails is not complete.
func TestServerReverseProxyAborts(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		say(w, "part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer upstream.Close()
	target, err := url.Parse(upstream.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	f := servingBy(t, proxy)
	for _, h2 := range []bool{false, true} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!h2)
		protocols.SetUnencryptedHTTP2(h2)
		client := &http.Client{Transport: &http.Transport{Protocols: protocols}, Timeout: patience}
		rsp, err := client.Get("http://" + f.addr)
		require.NoError(t, err)
		got, err := io.ReadAll(rsp.Body)
		require.Error(t, err, "HTTP/2: %v", h2)
		assert.Equal(t, "part", string(got))
		rsp.Body.Close()
		client.CloseIdleConnections()
	}
}

func TestServerBothProtocols(t *testing.T) {
	f := servingBy(t, http.HandlerFunc(shapes))
	for _, h2 := range []bool{false, true} {
		c := client(t, h2)
		for range 3 {
			rsp, err := c.Get("http://" + f.addr + "/length")
			require.NoError(t, err)
			assert.Equal(t, "hello", read(t, rsp))
			assert.Equal(t, map[bool]int{false: 1, true: 2}[h2], rsp.ProtoMajor)
		}
	}
	assert.EqualValues(t, 2, f.conns.Load(), "connections are kept")
	assert.Equal(t, "server", f.Describe().Name)
}

type callKey struct{}

// ConnFromContext returns the connection of a request, also below TLS.
func TestServerConnFromContext(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS() // for its certificate
	web.Close()
	client, server := netip.MustParseAddrPort("192.0.2.7:1234"), netip.MustParseAddrPort("198.51.100.1:80")
	seen := make(chan *http.Request, 1)
	s := NewServer(handledBy(func(_ http.ResponseWriter, r *http.Request) { seen <- r }))
	conns := make(pipes)
	ctx := context.WithValue(t.Context(), callKey{}, "of Call")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	defer close(conns)
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			raw, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer raw.Close()
			accepted, err := l.Accept()
			require.NoError(t, err)
			conn := tls.Server(tcplayer.OverrideAddrs(accepted, client, server), &tls.Config{Certificates: web.TLS.Certificates})
			done := make(chan result2, 1)
			go func() {
				traffic, err := s.Call(ctx, conn)
				done <- result2{traffic, err}
			}()
			tr := &http.Transport{Protocols: new(http.Protocols)}
			tr.Protocols.SetHTTP1(protocol == "http/1.1")
			tr.Protocols.SetUnencryptedHTTP2(protocol == "h2")
			tr.DialContext = func(context.Context, string, string) (net.Conn, error) {
				return tls.Client(raw, &tls.Config{ServerName: "gotower.test", InsecureSkipVerify: true}), nil
			}
			rsp, err := tr.RoundTrip(request(t, "GET", "http://gotower.test/", ""))
			require.NoError(t, err)
			read(t, rsp)
			r := <-seen
			assert.Same(t, conn, ConnFromContext(r.Context()))
			dst, ok := tcplayer.OriginalDst(ConnFromContext(r.Context()))
			assert.True(t, ok)
			assert.Equal(t, server, dst)
			state, ok := tcplayer.TLSState(ConnFromContext(r.Context()))
			assert.True(t, ok)
			assert.Equal(t, "gotower.test", state.ServerName)
			assert.Equal(t, map[string]string{"tls": "true"}, HTTP{}.SourceLabels(r))
			assert.Equal(t, client.String(), r.RemoteAddr)
			assert.Equal(t, server.String(), r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
			assert.Equal(t, "of Call", r.Context().Value(callKey{}))
			tr.CloseIdleConnections()
			got := <-done
			require.NoError(t, got.err)
			assert.Positive(t, got.Sent)
			assert.Positive(t, got.Received)
			assert.Error(t, r.Context().Err(), "the connection is over")
		})
	}
	assert.Nil(t, ConnFromContext(t.Context()))
}

func TestServerCountsBytes(t *testing.T) {
	s := NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) { pipe(w, r.Body) }))
	conn, done := callOn(t, t.Context(), s)
	text := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
	say(conn, text)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, result2{tcplayer.ByteCount{Sent: int64(len(text)), Received: int64(len(answer))}, nil}, <-done)
}

func TestServerRejectsCanceledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	conn, done := callOn(t, ctx, NewServer(handledBy(shapes)))
	require.ErrorIs(t, (<-done).err, layer.ErrNotReady)
	conn.Close()
	require.NoError(t, NewServer(FromHandler(http.NotFoundHandler())).Ready(ctx))
}

// The end of the ctx of Call ends all handlers: those that read, wait, write or have hijacked the
// connection.
func TestServerContextEnds(t *testing.T) {
	enough := errors.New("the grace is over")
	for name, do := range map[string]http.HandlerFunc{
		"wait":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"read":  func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"write": func(w http.ResponseWriter, r *http.Request) { pipe(w, zeros{}) },
		"hijack": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}
		},
	} {
		for _, h2 := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " h2"}[h2], func(t *testing.T) {
				if h2 && name == "hijack" {
					t.Skip("HTTP/2 has none")
				}
				entered := make(chan *http.Request, 1)
				ctx, cancel := context.WithCancelCause(t.Context())
				conn, done := callOn(t, ctx, NewServer(handledBy(func(w http.ResponseWriter, r *http.Request) {
					entered <- r
					do(w, r)
				})))
				go func() {
					if !h2 {
						say(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
						return
					}
					c := newFramerClient(t, conn)
					c.open(1, false)
				}()
				r := <-entered
				cancel(enough)
				got := <-done
				require.ErrorIs(t, got.err, enough)
				require.ErrorContains(t, got.err, "server: broken off")
				require.Error(t, r.Context().Err())
			})
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A connection without a first byte is closed.
func TestServerSilentConnection(t *testing.T) {
	s := NewServer(handledBy(shapes), WithHeaderTimeout(20*time.Millisecond))
	_, done := callOn(t, t.Context(), s)
	require.ErrorIs(t, (<-done).err, layer.ErrTimeout)
	s = NewServer(handledBy(shapes), WithHeaderTimeout(patience))
	conn, done := callOn(t, t.Context(), s)
	conn.Close()
	require.ErrorIs(t, (<-done).err, io.ErrUnexpectedEOF)
}

// A tunnel is part of its connection: Call waits for its end, and so does Drain.
func TestServerWaitsForTunnels(t *testing.T) {
	f := servingBy(t, http.HandlerFunc(switchToEcho))
	conn, err := net.Dial("tcp", f.addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	say(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	rsp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, f.Drain(done), "1 connections are still open")
	for _, word := range []string{"one", "two"} {
		say(conn, word)
		got := make([]byte, len(word))
		_, err = io.ReadFull(in, got)
		require.NoError(t, err)
		assert.Equal(t, word, string(got))
	}
	conn.Close()
	require.NoError(t, f.Drain(t.Context()))
}

// HTTP/1.1: an idle connection is closed after a while. An active connection gets
// Connection: close in its response.
func TestServerDrainHTTP1(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		asked, answer := make(chan struct{}, 1), make(chan struct{})
		var network layertest.Network
		l, err := network.Listen("tcp", "10.0.0.1:80")
		require.NoError(t, err)
		f := servingOn(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				asked <- struct{}{}
				<-answer
			}
			say(w, "hello")
		}), 0, WithDrainTimeout(time.Second))
		talk := func() (net.Conn, *bufio.Reader) {
			conn, err := network.DialContext(ctx, "tcp", f.addr)
			require.NoError(t, err)
			t.Cleanup(func() { conn.Close() })
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			return conn, bufio.NewReader(conn)
		}
		get := func(conn net.Conn, in *bufio.Reader, path string) *http.Response {
			say(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n")
			rsp, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			assert.Equal(t, "hello", read(t, rsp))
			return rsp
		}
		idle, idleIn := talk()
		assert.False(t, get(idle, idleIn, "/").Close)
		again, againIn := talk()
		assert.False(t, get(again, againIn, "/").Close)
		active, activeIn := talk()
		said := make(chan *http.Response, 1)
		go func() { said <- get(active, activeIn, "/slow") }()
		<-asked

		begun := time.Now()
		done, cancel := context.WithCancel(ctx)
		cancel()
		require.Error(t, f.Drain(done))
		assert.True(t, f.Draining())
		assert.True(t, get(again, againIn, "/").Close, "Connection: close")
		assert.Zero(t, time.Since(begun))
		_, err = idleIn.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		assert.InDelta(t, time.Second, time.Since(begun), float64(2*sweep.Interval))
		synctest.Wait()
		require.EqualValues(t, 1, f.conns.Load())
		close(answer)
		assert.True(t, (<-said).Close)
		require.NoError(t, f.Drain(ctx))
	})
}

// A connection that was accepted before the drain is served, even if its first byte arrives
// later.
func TestServerDrainServesNewConnections(t *testing.T) {
	t.Parallel()
	s := NewServer(handledBy(shapes), WithDrainTimeout(patience))
	require.NoError(t, s.Drain(t.Context()))
	conn, done := callOn(t, t.Context(), s)
	say(conn, "GET /length HTTP/1.1\r\nHost: a\r\n\r\n")
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Contains(t, string(text), "HTTP/1.1 200 OK")
	assert.Contains(t, string(text), "Connection: close")
	require.NoError(t, (<-done).err)

	conn, done = callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	c.open(1, true)
	seen := c.until(func(e event) bool { return e.kind == "goaway" && e.last != maxStream })
	seen = append(seen, c.until(nil)...)
	assert.Contains(t, kindsOf(seen), "end 1")
	require.NoError(t, (<-done).err)
}

func TestServerWithoutTimeouts(t *testing.T) {
	// Without a header timeout the first byte has no time limit.
	s := NewServer(handledBy(shapes), WithHeaderTimeout(0), WithWriteTimeout(0), WithServerIdleTimeout(time.Hour))
	conn, done := callOn(t, t.Context(), s)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	say(conn, "GET /length HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Contains(t, string(text), "200 OK")
	require.NoError(t, (<-done).err)
}

// pipes accepts pipes. A Write to a pipe returns after the other side has read the bytes.
type pipes chan net.Conn

func (l pipes) Accept() (net.Conn, error) {
	conn, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l pipes) Close() error {
	close(l)
	return nil
}

func (l pipes) Addr() net.Addr { return &net.UnixAddr{} }

// If ALPN selected "h2", the Server speaks only HTTP/2, whatever the client sends.
func TestServerALPNSelectsHTTP2(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Close()
	cfg := &tls.Config{Certificates: secure.TLS.Certificates, NextProtos: []string{"h2"}}

	test := func(name string, do func(t *testing.T, client *tls.Conn, done <-chan error)) {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				a, b := net.Pipe()
				defer a.Close()
				defer b.Close()
				s, done := NewServer(handledBy(shapes), WithHeaderTimeout(4*time.Second)), make(chan error, 1)
				go func() {
					conn := tls.Server(b, cfg)
					err := conn.HandshakeContext(ctx)
					if err == nil {
						_, err = s.Call(ctx, conn)
					}
					done <- err
				}()
				client := tls.Client(a, &tls.Config{InsecureSkipVerify: true, NextProtos: cfg.NextProtos})
				require.NoError(t, client.HandshakeContext(ctx))
				do(t, client, done)
			})
		})
	}
	// goAway reads until the end of the connection and returns the code of the GOAWAY.
	goAway := func(client net.Conn) (code xhttp2.ErrCode) {
		frames := xhttp2.NewFramer(io.Discard, client)
		for f, err := frames.ReadFrame(); err == nil; f, err = frames.ReadFrame() {
			if f, ok := f.(*xhttp2.GoAwayFrame); ok {
				code = f.ErrCode
			}
		}
		return code
	}
	for _, said := range []string{"INVALID CONNECTION PREFACE\r\n\r\n", "GET /length HTTP/1.1\r\nHost: a\r\n\r\n"} {
		test(said, func(t *testing.T, client *tls.Conn, done <-chan error) {
			go say(client, said)
			assert.Equal(t, xhttp2.ErrCodeProtocol, goAway(client))
			err := <-done
			require.ErrorContains(t, err, "invalid preface")
			require.NotErrorIs(t, err, layer.ErrTimeout)
		})
	}
	test("request", func(t *testing.T, client *tls.Conn, done <-chan error) {
		c := newFramerClient(t, client)
		c.open(1, true)
		c.until(func(e event) bool { return e.kind == "end 1" })
		client.Close()
		require.NoError(t, <-done)
	})
	for _, said := range []string{"", "PRI * HTTP/2.0\r\n"} {
		test("timeout after "+said, func(t *testing.T, client *tls.Conn, done <-chan error) {
			begun := time.Now()
			go say(client, said)
			goAway(client)
			assert.InDelta(t, 4*time.Second, time.Since(begun), float64(2*sweep.Interval))
			require.ErrorIs(t, <-done, layer.ErrTimeout)
		})
		test("close after "+said, func(t *testing.T, client *tls.Conn, done <-chan error) {
			go func() { say(client, said); _ = client.CloseWrite() }()
			goAway(client)
			require.ErrorIs(t, <-done, io.ErrUnexpectedEOF)
		})
	}
}

// HTTP/1.1 and HTTP/2 accept the same authorities, and answer 400 to any other one.
func TestServerAuthority(t *testing.T) {
	hosts := make(chan string, 1)
	front := servingBy(t, Handler(endpoint(t, serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host })))))
	for host, status := range map[string]string{
		"web": "200", "web:80": "200", "web:": "200", "web:0": "200", "web:65535": "200", "10.0.0.1:80": "200", "[::1]": "200", "[::1]:80": "200", "a_b.c": "200",
		"[::1": "400", "::1": "400", "a:b": "400", "a:99999": "400", "a:80:80": "400", "a:-1": "400", "a:+1": "400", ":80": "400",
		"me@web": "400", "me:secret@web:80": "400", "[10.0.0.1]": "400", "[]": "400", "[::1]x": "400", "a]": "400", "a[::1]": "400",
		"a/b": "400", "a b": "400", "a?b": "400", "a#b": "400", "[::1]:99999": "400", "a:18446744073709551617": "400",
	} {
		for _, version := range []string{"HTTP/1.1", "HTTP/2", "HTTP/2, host", "HTTP/1.1, absolute"} {
			t.Run(host+", "+version, func(t *testing.T) {
				var got string
				switch version {
				case "HTTP/1.1":
					got = askH1(t, front.addr, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
				case "HTTP/1.1, absolute":
					got = askH1(t, front.addr, "GET http://"+host+"/ HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
				case "HTTP/2":
					got = askH2(t, front.addr, ":method", "GET", ":scheme", "http", ":authority", host, ":path", "/")
				case "HTTP/2, host":
					got = askH2(t, front.addr, ":method", "GET", ":scheme", "http", ":path", "/", "host", host)
				}
				if version == "HTTP/1.1, absolute" && (host == "a/b" || host == "a?b") {
					require.Equal(t, "200", got) // the host is a
					<-hosts
					return
				}
				require.Equal(t, status, got)
				if status == "200" {
					assert.Equal(t, host, <-hosts)
				}
			})
		}
	}
}

// askH1 sends a request and returns the status of the response.
func askH1(t *testing.T, addr, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	say(conn, request)
	rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer rsp.Body.Close()
	return rsp.Status[:3]
}

// Blanks around a field value of HTTP/2 are removed.
func TestServerHTTP2OuterBlanks(t *testing.T) {
	got := make(chan http.Header, 1)
	front := servingBy(t, Handler(endpoint(t, serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })))))
	status := askH2(t, front.addr, ":method", "GET", ":scheme", "http", ":authority", "web", ":path", "/", "x-a", " \ta b\t ", "x-empty", " ")
	require.Equal(t, "200", status)
	header := <-got
	assert.Equal(t, []string{"a b"}, header["X-A"])
	assert.Equal(t, []string{""}, header["X-Empty"])
}

// load is what clients of all kinds make of a proxy.
type load struct {
	addr     string
	clients  sync.WaitGroup
	requests atomic.Int64
	mu       sync.Mutex
	failures []string
}

func (l *load) count(kind string, err error) {
	l.requests.Add(1)
	if err != nil {
		l.mu.Lock()
		l.failures = append(l.failures, kind+": "+err.Error())
		l.mu.Unlock()
	}
}

// run does one thing after another, until the load is stopped.
func (l *load) run(ctx context.Context, kind string, once func() error) {
	l.clients.Go(func() {
		for ctx.Err() == nil {
			l.count(kind, once())
		}
	})
}

// byHTTP1 sends requests without retries. It reconnects only on demand.
func byHTTP1(addr string) (once func() error, hangUp func()) {
	var conn net.Conn
	var in *bufio.Reader
	hangUp = func() {
		if conn != nil {
			conn.Close()
		}
	}
	once = func() (err error) {
		if conn == nil {
			if conn, err = net.Dial("tcp", addr); err != nil {
				return err
			}
			in = bufio.NewReader(conn)
		}
		say(conn, "POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
		rsp, err := http.ReadResponse(in, nil)
		if err != nil {
			conn.Close()
			conn = nil
			return err
		}
		if _, err = io.Copy(io.Discard, rsp.Body); err != nil || rsp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", rsp.Status, err)
		}
		if rsp.Close {
			err = conn.Close()
			conn = nil
		}
		return err
	}
	return once, hangUp
}

func byHTTP2(t *testing.T, addr string) func() error {
	c := client(t, true)
	return func() error {
		rsp, err := c.Get("http://" + addr + "/length")
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		if rsp.StatusCode != http.StatusOK {
			return errors.New(rsp.Status)
		}
		return nil
	}
}

func byGRPC(t *testing.T, addr string) (unary, stream func() error) {
	c := grpcClient(t, addr)
	unary = func() error {
		_, err := c.UnaryCall(context.Background(), &pb.SimpleRequest{ResponseSize: 10})
		return err
	}
	stream = func() error {
		s, err := c.FullDuplexCall(context.Background())
		if err != nil {
			return err
		}
		for range 5 {
			if err = s.Send(&pb.StreamingOutputCallRequest{Payload: payload(10)}); err != nil {
				return err
			}
			if _, err = s.Recv(); err != nil {
				return err
			}
		}
		if err = s.CloseSend(); err != nil {
			return err
		}
		if _, err = s.Recv(); err == nil {
			return errors.New("more than was asked for")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	return unary, stream
}

// TestServerRestarts replaces a proxy under load by its successor several times. No request fails.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	const restarts, each = 5, 300
	plain := endpoint(t, serve(t, http.HandlerFunc(shapes)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &greeter{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	toGRPC := endpoint(t, l.Addr().String(), WithHTTP2())
	h := Handler(serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		if isGRPC(r) {
			return toGRPC.Call(ctx, r)
		}
		return plain.Call(ctx, r)
	}))

	shared, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer shared.Close()
	next := func() *front { // each has the same socket
		file, err := shared.(*net.TCPListener).File()
		require.NoError(t, err)
		defer file.Close()
		own, err := net.FileListener(file)
		require.NoError(t, err)
		// Longer than any client is idle on a slow machine.
		return servingOn(t, own, h, patience, WithDrainTimeout(patience))
	}
	now := next()
	ctx, stop := context.WithCancel(t.Context())
	clients := &load{addr: shared.Addr().String()}
	for range 3 {
		once, hangUp := byHTTP1(clients.addr)
		clients.run(ctx, "HTTP/1.1", once)
		defer hangUp()
		clients.run(ctx, "HTTP/2", byHTTP2(t, clients.addr))
	}
	for range 2 {
		unary, stream := byGRPC(t, clients.addr)
		clients.run(ctx, "gRPC", unary)
		clients.run(ctx, "gRPC stream", stream)
	}
	some := func() {
		want := clients.requests.Load() + each
		require.Eventually(t, func() bool { return clients.requests.Load() >= want }, patience, time.Millisecond)
	}
	began := time.Now()
	for range restarts {
		some()
		before := now
		now = next()
		before.drain()
		require.NoError(t, before.over(t), "some were broken off")
	}
	some()
	stop()
	clients.clients.Wait()
	t.Logf("%d requests in %v, %d restarts, %d failures",
		clients.requests.Load(), time.Since(began).Round(time.Millisecond), restarts, len(clients.failures))
	assert.Empty(t, clients.failures)
}

// piped gives one end of a pipe to s, in a bubble.
func piped(ctx context.Context, s *Server) (client net.Conn, done <-chan error) {
	conn, client := net.Pipe()
	over := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, conn)
		over <- err
	}()
	return client, over
}

// A drain waits for connections without a first byte no longer than for idle connections.
func TestServerDrainSilentClients(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []ServerOption
		wait time.Duration
	}{
		"default":                {nil, time.Second},
		"no header timeout":      {[]ServerOption{WithHeaderTimeout(0)}, time.Second},
		"shorter header timeout": {[]ServerOption{WithHeaderTimeout(500 * time.Millisecond)}, 500 * time.Millisecond},
		"no patience":            {[]ServerOption{WithDrainTimeout(0)}, h1.LeastDrain},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				s := NewServer(handledBy(shapes), tt.opts...)
				before, over := piped(ctx, s)
				defer before.Close()
				synctest.Wait()
				began := time.Now()
				require.NoError(t, s.Drain(ctx))
				assert.InDelta(t, tt.wait, time.Since(began), float64(2*sweep.Interval))
				require.ErrorIs(t, <-over, layer.ErrTimeout)

				after, over := piped(ctx, s)
				defer after.Close()
				began = time.Now()
				require.ErrorIs(t, <-over, layer.ErrTimeout)
				assert.InDelta(t, tt.wait, time.Since(began), float64(2*sweep.Interval))
			})
		})
	}
}

// A drain does not shorten the header timeout of a request that has begun.
func TestServerDrainWaitsForStartedRequest(t *testing.T) {
	for name, early := range map[string]bool{"before the drain": true, "after it": false} {
		for _, first := range []string{"P", "G", "PRI * HTTP/2."} {
			t.Run(name+" "+first, func(t *testing.T) {
				bubble(t, func(t *testing.T, ctx context.Context) {
					s := NewServer(handledBy(shapes))
					client, over := piped(ctx, s)
					defer client.Close()
					if early {
						say(client, first)
					}
					synctest.Wait()
					s.drain()
					if !early {
						time.Sleep(s.DrainTimeout - time.Millisecond)
						say(client, first)
					}
					time.Sleep(s.HeaderTimeout - time.Millisecond)
					synctest.Wait()
					require.Empty(t, over)
					switch first {
					case "P":
						say(client, "OST /length HTTP/1.1\r\nHost: a\r\n\r\n")
					case "G":
						say(client, "ET /length HTTP/1.1\r\nHost: a\r\n\r\n")
					default: // HTTP/2 has a preface, and then its SETTINGS
						go pipe(io.Discard, client)
						say(client, h2Preface[len(first):]+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
						require.NoError(t, <-over)
						return
					}
					rsp, err := http.ReadResponse(bufio.NewReader(client), nil)
					require.NoError(t, err)
					assert.Equal(t, "hello", read(t, rsp))
					assert.True(t, rsp.Close)
					require.NoError(t, <-over)
				})
			})
		}
	}
}

// refusals returns the address of a server whose handler must not be called, and its refusals.
func refusals(t *testing.T, opts ...ServerOption) (addr string, refused <-chan Refusal) {
	t.Helper()
	seen := make(chan Refusal, 10)
	report := WithRefused(func(ctx context.Context, r Refusal) {
		assert.NotNil(t, ConnFromContext(ctx))
		seen <- r
	})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("served %s", r.RequestURI) })
	return servingBy(t, handler, append(opts, report)...).addr, seen
}

// Each refused HTTP/1 request is answered at once and reported once.
func TestServerReportsRefusedRequests(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		input  string
		status int
		want   Refusal // Method, Host, Target and Proto
		reason string
		ends   bool // the client closes its sending half
	}{
		"malformed field": {
			input: "GET /a?b=c HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", status: 400,
			want: Refusal{Method: "GET", Host: "h", Target: "/a?b=c", Proto: "HTTP/1.1"}, reason: "colon",
		},
		"invalid target": {
			input: "GET http:///a HTTP/1.0\r\n\r\n", status: 400,
			want: Refusal{Method: "GET", Target: "http:///a", Proto: "HTTP/1.0"}, reason: "target",
		},
		"version": {
			input: "GET / HTTP/3.0\r\n\r\n", status: 505,
			want: Refusal{Method: "GET", Target: "/", Proto: "HTTP/1.1"}, reason: "version",
		},
		"coding": {
			input: "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", status: 501,
			want: Refusal{Method: "PUT", Host: "h", Target: "/", Proto: "HTTP/1.1"}, reason: "Transfer-Encoding",
		},
		"too large": {
			input: "GET /a HTTP/1.1\r\nA: " + strings.Repeat("b", 10_000), status: 431,
			want: Refusal{Method: "GET", Target: "/a", Proto: "HTTP/1.1"}, reason: "too large",
		},
		"incomplete": {
			input: "POST /a HTTP/1.1\r\nHost: h\r\n", status: 400, ends: true,
			want: Refusal{Method: "POST", Host: "h", Target: "/a", Proto: "HTTP/1.1"}, reason: "closed",
		},
		"too slow": {
			input: "POST /a HTTP/1.1\r\nHost: h\r\n", status: 408,
			want: Refusal{Method: "POST", Host: "h", Target: "/a", Proto: "HTTP/1.1"}, reason: "timeout",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := []ServerOption{WithMaxHeaderBytes(8 << 10), WithHeaderTimeout(time.Minute)}
			if tt.status == http.StatusRequestTimeout {
				opts[1] = WithHeaderTimeout(time.Millisecond)
			}
			addr, refused := refusals(t, opts...)
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			say(conn, tt.input)
			if tt.ends {
				require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			}
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			assert.Equal(t, tt.status, statusOf(answer))

			r := <-refused
			assert.Equal(t, conn.LocalAddr().String(), r.Client)
			assert.Equal(t, tt.status, r.Status)
			require.ErrorContains(t, r.Err, tt.reason)
			assert.WithinDuration(t, time.Now(), r.Time, time.Minute)
			assert.Equal(t, tt.want, Refusal{Method: r.Method, Host: r.Host, Target: r.Target, Proto: r.Proto})
			assert.Empty(t, refused)
		})
	}
}

// statusOf returns the status of an HTTP/1 response, or 0.
func statusOf(answer []byte) (status int) {
	for _, digit := range bytes.TrimPrefix(answer, []byte("HTTP/1.1 "))[:3] {
		status = 10*status + int(digit-'0')
	}
	return status
}

// Refused HTTP/2 requests are reported, and so is the violation that ends a connection.
func TestServerReportsRefusedStreams(t *testing.T) {
	t.Parallel()
	addr, refused := refusals(t, WithMaxHeaderBytes(8<<10))
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	go pipe(io.Discard, conn)
	say(conn, h2Preface)
	fr := xhttp2.NewFramer(conn, nil)
	require.NoError(t, fr.WriteSettings())
	block := headerBlock("connection", "close")
	require.NoError(t, fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true}))
	block = headerBlock("a", strings.Repeat("b", 9000))
	require.NoError(t, fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 3, BlockFragment: block, EndHeaders: true}))
	require.NoError(t, fr.WriteRawFrame(xhttp2.FrameData, 0, 0, nil))
	got := make([]Refusal, 0, 3)
	for range cap(got) {
		r := <-refused
		assert.Equal(t, conn.LocalAddr().String(), r.Client)
		require.Error(t, r.Err)
		assert.Equal(t, "HTTP/2.0", r.Proto)
		got = append(got, Refusal{Status: r.Status, Method: r.Method, Host: r.Host, Target: r.Target})
	}
	assert.ElementsMatch(t, []Refusal{
		{Status: 400, Method: "POST", Host: "h", Target: "/hang"}, {Status: 431, Method: "POST", Host: "h", Target: "/hang"}, {Status: 400},
	}, got)
	assert.Empty(t, refused)
}

// A refused request gets the response that the ErrorHandler writes, and the report has its status and its
// size. A panic of the ErrorHandler leaves the response without a body.
func TestErrorHandlerOfRefusedRequests(t *testing.T) {
	t.Parallel()
	reports := make(chan *Report, 10)
	addr, refused := refusals(t, WithMaxHeaderBytes(8<<10), WithOnResponse(func(x *Report) { reports <- x }),
		WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Method == http.MethodDelete {
				panic("odd")
			}
			status, _ := StatusFromError(err)
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Connection", "keep-alive")
			if status == http.StatusNotImplemented {
				w.WriteHeader(http.StatusTeapot)
			}
			fmt.Fprintf(w, "%d %s %s %s %d", status, r.Method, r.Host, r.URL.Path, r.ProtoMajor)
		}))
	stream := func(method string) (rsp *http.Response, body string, x *Report) {
		t.Helper()
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		c := newFramerClient(t, conn)
		c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		for _, f := range [][2]string{
			{":method", method}, {":scheme", "http"}, {":authority", "h"}, {":path", "/a?b=c"}, {"large", strings.Repeat("b", 9000)},
		} {
			require.NoError(t, c.enc.WriteField(hpackField(f[0], f[1])))
		}
		require.NoError(t, c.WriteHeaders(xhttp2.HeadersFrameParam{
			StreamID: 1, BlockFragment: c.block.Bytes(), EndStream: true, EndHeaders: true,
		}))
		for ended := false; !ended; {
			f, err := c.ReadFrame()
			require.NoError(t, err)
			switch f := f.(type) {
			case *xhttp2.MetaHeadersFrame:
				status, err := strconv.Atoi(f.PseudoValue("status"))
				require.NoError(t, err)
				rsp, ended = &http.Response{StatusCode: status}, f.StreamEnded()
			case *xhttp2.DataFrame:
				body += string(f.Data())
				ended = f.StreamEnded()
			}
		}
		return rsp, body, <-reports
	}
	raw := func(method, fields string) (*http.Response, string, *Report) {
		t.Helper()
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		say(conn, method+" /a?b=c HTTP/1.1\r\nHost: h\r\n"+fields+"\r\n\r\n")
		rsp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
		require.NoError(t, err)
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.True(t, rsp.Close)
		return rsp, string(body), <-reports
	}
	check := func(rsp *http.Response, body string, x *Report) func(status int, want string) {
		return func(status int, want string) {
			t.Helper()
			assert.Equal(t, []any{status, want, status, len(want)}, []any{rsp.StatusCode, body, x.Status, int(x.Sent)})
			assert.Equal(t, status, (<-refused).Status)
			assert.True(t, x.Refused)
		}
	}
	check(raw("GET", "A : b"))(400, "400 GET h /a 1")
	check(raw("PUT", "Transfer-Encoding: gzip"))(418, "501 PUT h /a 1")
	check(raw("HEAD", "A : b"))(400, "")
	check(raw("DELETE", "A : b"))(400, "")
	check(stream("GET"))(431, "431 GET h /a 2")
	check(stream("HEAD"))(431, "")
	check(stream("DELETE"))(431, "")
}

// A panic of the function ends neither the process nor the answer.
func TestServerRefusedPanics(t *testing.T) {
	t.Parallel()
	addr := servingBy(t, http.NotFoundHandler(), WithRefused(func(context.Context, Refusal) { panic("odd") })).addr
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	say(conn, "GET\r\n\r\n")
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, statusOf(answer))
}

// framerClient is a client of HTTP/2 that sends the frames of a test.
type framerClient struct {
	*xhttp2.Framer
	conn  net.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
	t     testing.TB
	deaf  bool // does not answer PING
}

func newFramerClient(t testing.TB, conn net.Conn) *framerClient {
	c := &framerClient{Framer: xhttp2.NewFramer(conn, conn), conn: conn, t: t}
	c.enc = hpack.NewEncoder(&c.block)
	say(conn, h2Preface)
	_ = c.WriteSettings()
	return c
}

func (c *framerClient) open(stream uint32, end bool, fields ...string) {
	c.block.Reset()
	all := append([]string{":method", "POST", ":scheme", "http", ":authority", "a", ":path", "/length"}, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = c.enc.WriteField(hpackField(all[i], all[i+1]))
	}
	_ = c.WriteHeaders(xhttp2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block.Bytes(), EndStream: end, EndHeaders: true,
	})
}

func hpackField(name, value string) hpack.HeaderField {
	return hpack.HeaderField{Name: name, Value: value}
}

// event is a received frame that concerns streams.
type event struct {
	kind string // "goaway", "ping", "head 1", "end 1", "reset 1"
	last uint32 // of a goaway
	code xhttp2.ErrCode
	ping [8]byte
}

func kindsOf(events []event) (kinds []string) {
	for _, e := range events {
		kinds = append(kinds, e.kind)
	}
	return kinds
}

// until reads frames, and acknowledges SETTINGS and PING, until stop returns true or
// the connection ends.
func (c *framerClient) until(stop func(event) bool) (seen []event) {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			require.Nil(c.t, stop, "the connection ended early: %v, after %v", err, seen)
			return seen
		}
		var now []event
		id := f.Header().StreamID
		ended := false
		switch f := f.(type) {
		case *xhttp2.SettingsFrame:
			if !f.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *xhttp2.PingFrame:
			now = append(now, event{kind: "ping", ping: f.Data})
			if !f.IsAck() && !c.deaf {
				_ = c.WritePing(true, f.Data)
			}
		case *xhttp2.GoAwayFrame:
			now = append(now, event{kind: "goaway", last: f.LastStreamID, code: f.ErrCode})
		case *xhttp2.HeadersFrame:
			now = append(now, event{kind: fmt.Sprint("head ", id)})
			ended = f.StreamEnded()
		case *xhttp2.DataFrame:
			ended = f.StreamEnded()
		case *xhttp2.RSTStreamFrame:
			now = append(now, event{kind: fmt.Sprint("reset ", id), code: f.ErrCode})
		}
		if ended {
			now = append(now, event{kind: fmt.Sprint("end ", id)})
		}
		for _, e := range now {
			seen = append(seen, e)
			if stop != nil && stop(e) {
				return seen
			}
		}
	}
}

func is(kind string) func(event) bool {
	return func(e event) bool { return e.kind == kind }
}

// Draining sends two GOAWAYs, because the client may open streams before it reads
// the first one. Those streams are served.
func TestGoAwayInTwoSteps(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	answer := make(chan struct{})
	s := NewServer(handledBy(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		say(w, "hello")
	}), WithDrainTimeout(patience))
	conn, done := callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	c.deaf = true
	c.open(1, true)
	<-asked
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Drain(over))
	seen := c.until(is("ping"))
	require.Equal(t, []string{"goaway", "ping"}, kindsOf(seen))
	assert.EqualValues(t, maxStream, seen[0].last)
	assert.Equal(t, xhttp2.ErrCodeNo, seen[0].code)

	// The client has not read the first GOAWAY.
	c.open(3, true)
	c.open(5, true)
	<-asked
	<-asked
	// This stream precedes the acknowledgement of the PING.
	c.open(7, true)
	_ = c.WritePing(true, seen[1].ping)
	<-asked
	seen = c.until(is("goaway"))
	assert.EqualValues(t, 7, seen[len(seen)-1].last, "the last stream that is served")
	close(answer)
	kinds := kindsOf(c.until(nil))
	for _, end := range []string{"end 1", "end 3", "end 5", "end 7"} {
		assert.Contains(t, kinds, end)
	}
	require.NoError(t, (<-done).err)
}

// The second GOAWAY is sent after the drain timeout if the client does not answer the
// PING.
func TestGoAwayWithoutAcknowledgement(t *testing.T) {
	t.Parallel()
	s := NewServer(handledBy(shapes), WithDrainTimeout(10*time.Millisecond))
	conn, done := callOn(t, t.Context(), s)
	c := newFramerClient(t, conn)
	c.deaf = true
	c.open(1, true)
	c.until(is("end 1"))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Drain(over))
	seen := c.until(nil)
	require.Equal(t, []string{"goaway", "ping", "goaway"}, kindsOf(seen))
	assert.EqualValues(t, 1, seen[2].last)
	require.NoError(t, (<-done).err)
}

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
