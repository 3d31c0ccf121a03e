package httplayer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
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
	f.Server = NewServer(h, append([]ServerOption{WithDrainOnDone(ctx)}, opts...)...)
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
	s := NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r }))
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
			assert.Equal(t, map[string]string{"tls": "true"}, Accessor{}.SourceLabels(r))
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
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pipe(w, r.Body) }))
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
	conn, done := callOn(t, ctx, NewServer(http.HandlerFunc(shapes)))
	require.ErrorIs(t, (<-done).err, layer.ErrNotReady)
	conn.Close()
	require.NoError(t, NewServer(http.NotFoundHandler()).Ready(ctx))
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
				conn, done := callOn(t, ctx, NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	s := NewServer(http.HandlerFunc(shapes), WithHeaderTimeout(20*time.Millisecond))
	_, done := callOn(t, t.Context(), s)
	require.ErrorIs(t, (<-done).err, layer.ErrTimeout)
	s = NewServer(http.HandlerFunc(shapes), WithHeaderTimeout(patience))
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
	s := NewServer(http.HandlerFunc(shapes), WithDrainTimeout(patience))
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
	s := NewServer(http.HandlerFunc(shapes), WithHeaderTimeout(0), WithWriteTimeout(0), WithServerIdleTimeout(time.Hour))
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
