package httplayer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

var errChanged = errors.New("changed my mind")

func TestEndpointCancel(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			say(w, "half")
			flush(w)
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		t.Run("before the response", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-arrived
				cancel(errChanged)
			}()
			_, err := e.Call(ctx, request(t, "GET", "http://web/head", ""))
			assert.ErrorIs(t, err, errChanged)
			assert.NotErrorIs(t, err, layer.ErrNotReady, "it was admitted")
			<-gone
		})
		t.Run("in the body", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			rsp, err := e.Call(ctx, request(t, "GET", "http://web/body", ""))
			require.NoError(t, err)
			<-arrived
			cancel(errChanged)
			_, err = io.ReadAll(rsp.Body)
			assert.Error(t, err)
			rsp.Body.Close()
			<-gone
		})
		t.Run("by closing the body", func(t *testing.T) {
			rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/body", ""))
			require.NoError(t, err)
			<-arrived
			rsp.Body.Close()
			<-gone
		})
		require.NoError(t, e.Ready(t.Context()))
	})
}

func TestEndpointAbandonedBody(t *testing.T) {
	// The body is never closed. The end of ctx frees the connection.
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 1)
		h.srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			say(w, "half")
			flush(w)
			<-r.Context().Done()
		})
		for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
			e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithMaxConns(1), WithDialContext(h.network.DialContext))
			mine, cancel := context.WithCancel(ctx)
			_, err := e.Call(mine, request(t, "GET", "http://web/", ""))
			require.NoError(t, err)
			assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
			ready := make(chan error, 1)
			go func() { ready <- e.Ready(ctx) }()
			synctest.Wait()
			assert.Empty(t, ready)
			began := time.Now()
			cancel()
			assert.NoError(t, <-ready)
			assert.Zero(t, time.Since(began), "waiters were not woken")
			synctest.Wait()
			assert.Zero(t, e.Describe().State.Get("in_flight"))
		}
	})
}

func TestEndpointContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fullDuplex(w)
			flush(w)
			pipe(w, r.Body)
		})
		for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
			life, end := context.WithCancelCause(ctx)
			e := NewEndpoint(life, "10.0.0.1:80", protocol, WithDialContext(h.network.DialContext))
			body, written := io.Pipe()
			req := request(t, "POST", "http://web/", "")
			req.Body = body
			go written.Write([]byte("one"))
			rsp, err := e.Call(ctx, req)
			require.NoError(t, err)
			require.NoError(t, get(ctx, e, "/")) // HTTP/1.1 has an idle connection now
			waiting := NewEndpoint(life, "10.0.0.2:80", protocol, WithDialContext(h.network.DialContext))
			require.ErrorIs(t, get(ctx, waiting, "/"), layer.ErrNotReady) // nothing listens there
			ready := make(chan error, 1)
			go func() { ready <- waiting.Ready(ctx) }()
			synctest.Wait()

			end(errChanged)
			assert.ErrorIs(t, <-ready, layer.ErrClosed)
			synctest.Wait()
			for _, err := range []error{e.Ready(ctx), get(ctx, e, "/"), layer.Poll[*http.Request, *http.Response](e)} {
				assert.ErrorIs(t, err, layer.ErrClosed)
				assert.ErrorIs(t, err, errChanged)
			}
			s := e.Describe().State
			assert.Equal(t, 1, s.Get("connections"), "only the one that is in use")

			// This request continues to its end.
			written.Write([]byte(" two"))
			written.Close()
			assert.Equal(t, "one two", read(t, rsp))
			synctest.Wait()
			assert.Equal(t, 0, e.Describe().State.Get("connections"))
		}
	})
}

func TestEndpointContextEndsDuringDial(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
			life, end := context.WithCancelCause(ctx)
			s := &switched{off: errSilence}
			e := NewEndpoint(life, "10.0.0.1:80", protocol, WithDialContext(s.DialContext))
			called, ready := make(chan error, 1), make(chan error, 1)
			require.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
			time.Sleep(time.Second)
			go func() { called <- get(ctx, e, "/") }()
			synctest.Wait()
			go func() { ready <- e.Ready(ctx) }()
			synctest.Wait()
			end(errChanged)
			assert.ErrorIs(t, <-called, layer.ErrClosed)
			assert.ErrorIs(t, <-ready, layer.ErrClosed)
		}
	})
}

func TestEndpointContextEndsAfterDial(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		life, end := context.WithCancelCause(ctx)
		e := NewEndpoint(life, "10.0.0.1:80", WithHTTP2(), WithDialContext(h.network.DialContext))
		c, err := e.h2.connect(attempt{})
		require.NoError(t, err)
		end(errChanged)
		synctest.Wait()
		e.h2.publish(c)
		synctest.Wait()
		assert.Error(t, c.Err(), "the Endpoint closes it")
	})
}

func TestEndpointWaitsForSettings(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0) // for its network
		settle := make(chan int, 1)
		peers := make(chan *rawH2, 1)
		rawHost(t, h, "10.0.0.2:80", func(_ int, c *rawH2) {
			if n := <-settle; n >= 0 {
				c.settings(n)
				peers <- c
			}
			c.drain()
		})

		// They are waited for.
		e := NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(h.network.DialContext))
		began := time.Now()
		time.AfterFunc(700*time.Millisecond, func() { settle <- 0 })
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
		assert.Equal(t, 700*time.Millisecond, time.Since(began))

		// No stream at all is a limit like any other, and it may be raised.
		peer := <-peers
		ready := make(chan error, 1)
		go func() { ready <- e.Ready(ctx) }()
		synctest.Wait()
		assert.Empty(t, ready)
		peer.settings(1)
		began = time.Now()
		assert.NoError(t, <-ready)
		assert.Zero(t, time.Since(began))

		// They are not waited for without end.
		e = NewEndpoint(ctx, "10.0.0.2:80", WithHTTP2(), WithDialContext(h.network.DialContext), WithConnectTimeout(300*time.Millisecond))
		began = time.Now()
		err := get(ctx, e, "/")
		assert.ErrorIs(t, err, layer.ErrNotReady)
		assert.Equal(t, 300*time.Millisecond, time.Since(began))
		assert.ErrorContains(t, err, "SETTINGS")
		status, code := StatusFromError(err)
		assert.Equal(t, http.StatusGatewayTimeout, status)
		assert.EqualValues(t, grpcDeadlineExceeded, code)
		settle <- -1
	})
}

func TestEndpointServerWithoutH2(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes), func(s *http.Server) {
		s.Protocols = new(http.Protocols)
		s.Protocols.SetHTTP1(true)
	})
	two := func() *http.Request {
		req := request(t, "GET", "http://web/length", "")
		req.ProtoMajor = 2
		return req
	}
	t.Run("auto", func(t *testing.T) {
		e := endpoint(t, addr)
		for range 3 {
			rsp, err := e.Call(t.Context(), two())
			require.NoError(t, err, "it gets by HTTP/1.1 what came by HTTP/2")
			assert.Equal(t, 1, rsp.ProtoMajor)
			_, err = io.Copy(io.Discard, rsp.Body)
			assert.NoError(t, err)
			assert.NoError(t, rsp.Body.Close())
		}
		assert.NoError(t, e.Ready(t.Context()))
		assert.Equal(t, 1, e.Describe().State.Get("connections"), "and is not asked about HTTP/2 each time")
	})
	t.Run("auto, gRPC-Web", func(t *testing.T) {
		e := endpoint(t, addr, WithConnectTimeout(patience))
		for range 2 {
			req, _ := byTwo(t, true)
			req.Header.Set("Content-Type", "application/grpc-web+proto")
			rsp, err := e.Call(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, 1, rsp.ProtoMajor)
			read(t, rsp)
		}
	})
	t.Run("auto, gRPC", func(t *testing.T) {
		e := endpoint(t, addr)
		for range 3 {
			req, body := byTwo(t, true)
			_, err := e.Call(t.Context(), req)
			assert.EqualValues(t, 1, body.closes.Load(), "so it was admitted")
			assert.ErrorIs(t, err, errNotH2)
			assert.NotErrorIs(t, err, layer.ErrNotReady, "it can do nothing for this request, ever")
			status, _ := StatusFromError(err)
			assert.Equal(t, http.StatusBadGateway, status)
			assert.NoError(t, get(t.Context(), e, "/length"), "and serves other requests")
		}
		assert.NoError(t, e.Ready(t.Context()))
	})
	t.Run("h2", func(t *testing.T) {
		e := endpoint(t, addr, WithHTTP2())
		err := get(t.Context(), e, "/length")
		assert.ErrorIs(t, err, errNotH2)
		assert.ErrorIs(t, err, layer.ErrNotReady)
		assert.Equal(t, "down", e.Describe().State.Get("link"))
	})
}

func TestEndpointReadyReason(t *testing.T) {
	refused := errors.New("connection refused, it says")
	e := endpoint(t, "10.0.0.1:80", WithDialContext(func(context.Context, string, string) (net.Conn, error) { return nil, refused }))
	require.NoError(t, layer.Poll(e), "nothing is known yet")
	require.ErrorIs(t, get(t.Context(), e, "/"), refused)
	err := layer.Poll(e)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, refused)
	require.ErrorContains(t, err, "endpoint 10.0.0.1:80: not ready: no connection: ")
}

func TestEndpointUpgrade(t *testing.T) {
	addr := serve(t, http.HandlerFunc(switchToEcho))
	life, end := context.WithCancel(context.Background())
	defer end()
	e := NewEndpoint(life, addr, WithHTTP2(), WithMaxConns(1), WithConnectTimeout(patience))
	req := request(t, "GET", "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	rsp, err := e.Call(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	both, ok := rsp.Body.(io.ReadWriteCloser)
	require.True(t, ok)

	assert.Equal(t, 1, e.Describe().State.Get("in_flight"))
	_, err = e.Call(t.Context(), req)
	assert.ErrorIs(t, err, layer.ErrNotReady, "the connection still counts")
	end()
	say(both, "it lives on")
	require.NoError(t, both.(halfCloser).CloseWrite())
	got, err := io.ReadAll(both)
	require.NoError(t, err)
	assert.Equal(t, "it lives on", string(got))
	require.NoError(t, both.Close())
	both.Close()
	assert.Equal(t, 0, e.Describe().State.Get("connections"))
}

// switchToEcho upgrades to a protocol that sends everything back, and ends
// when its client has ended.
func switchToEcho(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "echo" || r.Header.Get("Connection") != "Upgrade" {
		http.Error(w, "no upgrade", http.StatusUpgradeRequired)
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	pipe(conn, buf)
}

func TestEndpointTLS(t *testing.T) {
	for name, protocol := range map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2.0": WithHTTP2()} {
		t.Run(name, func(t *testing.T) {
			srv := tlsServer(t, true)
			trusting := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			trusting.ServerName = "example.com"
			addr := srv.Listener.Addr().String()
			e := endpoint(t, addr, protocol, WithTLS(trusting))
			for range 2 {
				rsp, err := e.Call(t.Context(), request(t, "GET", "https://web/what", ""))
				require.NoError(t, err)
				assert.Contains(t, read(t, rsp), name)
				require.NotNil(t, rsp.TLS)
				assert.True(t, rsp.TLS.HandshakeComplete)
			}
			assert.Equal(t, 1, e.Describe().State.Get("connections"))

			doubtful := trusting.Clone()
			doubtful.ServerName = "" // 127.0.0.1 is in the certificate
			assert.NoError(t, get(t.Context(), endpoint(t, addr, protocol, WithTLS(doubtful)), "/what"))
			doubtful.ServerName = "elsewhere.org"
			err := get(t.Context(), endpoint(t, addr, protocol, WithTLS(doubtful)), "/what")
			assert.ErrorIs(t, err, layer.ErrNotReady)
			status, _ := StatusFromError(err)
			assert.Equal(t, http.StatusBadGateway, status)
		})
	}
	t.Run("no h2", func(t *testing.T) {
		srv := tlsServer(t, false)
		cfg := srv.Client().Transport.(*http.Transport).TLSClientConfig
		err := get(t.Context(), endpoint(t, srv.Listener.Addr().String(), WithHTTP2(), WithTLS(cfg)), "/what")
		assert.ErrorIs(t, err, layer.ErrNotReady)
	})
}

func tlsServer(t *testing.T, h2 bool) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(shapes))
	srv.EnableHTTP2 = h2
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func TestEndpointLeaksNothing(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		life, end := context.WithCancel(context.Background())
		var ends []chan struct{}
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			c := &closing{conn, make(chan struct{})}
			ends = append(ends, c.closed)
			return c, err
		}
		e := NewEndpoint(life, addr, protocol, WithDialContext(dial), WithConnectTimeout(patience))
		require.NoError(t, get(t.Context(), e, "/length"))
		end()
		for _, closed := range ends {
			<-closed
		}
	})
}

// closing is a connection that reports its Close.
type closing struct {
	net.Conn
	closed chan struct{}
}

func (c *closing) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return c.Conn.Close()
}

func TestEndpointUpgradeKeepsEarlyBytes(t *testing.T) {
	// What comes with the head of an upgrade is not lost.
	addr := rawServer(t, func(_ int, conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nalready")
		}
	})
	req := request(t, "GET", "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "x")
	rsp, err := endpoint(t, addr).Call(t.Context(), req)
	require.NoError(t, err)
	assert.Equal(t, "already", read(t, rsp))
}

// slowDialer is a dial function with a delay, which counts open connections.
type slowDialer struct {
	by    func(context.Context, string, string) (net.Conn, error)
	takes time.Duration

	mu                sync.Mutex
	dials, open, most int
}

func (r *slowDialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	r.dials++
	r.mu.Unlock()
	time.Sleep(r.takes)
	conn, err := r.by(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	r.count(1)
	return &counting{Conn: conn, over: sync.OnceFunc(func() { r.count(-1) })}, nil
}

func (r *slowDialer) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open += n
	r.most = max(r.most, r.open)
}

func (r *slowDialer) state() (dials, open, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dials, r.open, r.most
}

type counting struct {
	net.Conn
	over func()
}

func (c *counting) Close() error {
	c.over()
	return c.Conn.Close()
}

// each runs a test in a bubble by each protocol.
func each(t *testing.T, test func(t *testing.T, ctx context.Context, h2 bool, protocol EndpointOption)) {
	for name, h2 := range map[string]bool{"http1": false, "h2": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ctx context.Context) {
				if h2 {
					test(t, ctx, h2, WithHTTP2())
				} else {
					test(t, ctx, h2, WithHTTP1())
				}
			})
		})
	}
}

// whoami answers with the name of the connection that a request came by; under
// /stream it does so for every line that it gets.
func whoami(w http.ResponseWriter, r *http.Request) {
	fullDuplex(w)
	say(w, r.RemoteAddr)
	if r.URL.Path != "/stream" {
		return
	}
	flush(w)
	pipe(flushing{w}, r.Body)
}

type flushing struct{ http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	defer flush(f.ResponseWriter)
	return f.ResponseWriter.Write(p)
}

// talk is a stream that is open.
type talk struct {
	in   *io.PipeWriter
	rsp  *http.Response
	name string
}

func openTalk(ctx context.Context, t *testing.T, e *Endpoint) *talk {
	t.Helper()
	body, in := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web/stream", body)
	require.NoError(t, err)
	rsp, err := e.Call(ctx, req)
	require.NoError(t, err)
	s := &talk{in: in, rsp: rsp}
	s.name = s.hear(t, len("127.0.0.1:49152"))
	return s
}

func (s *talk) hear(t *testing.T, n int) string {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(s.rsp.Body, b)
	require.NoError(t, err)
	return string(b)
}

func (s *talk) writeLine(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(s.in, text)
	require.NoError(t, err)
	require.Equal(t, text, s.hear(t, len(text)))
}

func (s *talk) end(t *testing.T) {
	t.Helper()
	require.NoError(t, s.in.Close())
	assert.Empty(t, read(t, s.rsp))
}

// name asks for the name of the connection in use.
func name(ctx context.Context, t *testing.T, e *Endpoint) string {
	t.Helper()
	rsp, err := e.Call(ctx, request(t, http.MethodGet, "http://web/", ""))
	require.NoError(t, err)
	return read(t, rsp)
}

func TestEndpointAgeFinishesStreams(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		h.srv.Handler = http.HandlerFunc(whoami)
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(h.network.DialContext), WithMaxConnAge(time.Minute))
		long := openTalk(ctx, t, e)
		time.Sleep(50 * time.Second)
		assert.Equal(t, long.name, name(ctx, t, e), "not old yet")
		time.Sleep(time.Hour)
		assert.Equal(t, 1, e.Describe().State.Get("connections"), "without requests there is no need of another")
		name(ctx, t, e) // finds the age out, and is served by the old one or by its replacement
		synctest.Wait()
		assert.NotEqual(t, long.name, name(ctx, t, e))
		s := e.Describe().State
		assert.Equal(t, 2, s.Get("connections"))
		assert.Equal(t, 1, s.Get("in_flight"))

		long.writeLine(t, "still here")
		time.Sleep(time.Hour)
		long.writeLine(t, "and here")
		long.end(t)
		synctest.Wait()
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
}

func TestEndpointAgeReachesNewBackends(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, _ bool, protocol EndpointOption) {
		const clients = 10
		one, two := newHost(ctx, 0), newHost(ctx, 0)
		var both atomic.Bool
		var turn atomic.Int32
		// The virtual address: one backend at first, then two in turn.
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			if both.Load() && turn.Add(1)%2 == 0 {
				return two.network.DialContext(ctx, network, addr)
			}
			return one.network.DialContext(ctx, network, addr)
		}
		ageing, staying := make([]*Endpoint, clients), make([]*Endpoint, clients)
		for i := range clients {
			ageing[i] = NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(dial), WithMaxConnAge(time.Minute))
			staying[i] = NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(dial))
		}
		run := func(of []*Endpoint, d time.Duration) (first, second int64) {
			first, second = one.served.Load(), two.served.Load()
			for began := time.Now(); time.Since(began) < d; time.Sleep(2 * time.Second) {
				for _, e := range of {
					require.NoError(t, get(ctx, e, "/"))
				}
			}
			return one.served.Load() - first, two.served.Load() - second
		}
		for _, of := range [][]*Endpoint{ageing, staying} {
			both.Store(false)
			_, second := run(of, 10*time.Second)
			require.Zero(t, second)
			both.Store(true)
			run(of, 70*time.Second)
			first, second := run(of, 4*time.Minute)
			share := float64(second) / float64(first+second)
			if &of[0] == &ageing[0] {
				assert.InDelta(t, 0.5, share, 0.2)
			} else {
				assert.Zero(t, share, "which shows that it was the age")
			}
		}
	})
}

func TestAgeJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, d = 10000, time.Hour
		limits := make([]float64, n)
		sum := 0.0
		for i := range limits {
			limits[i] = float64(time.Until(newAge(d).end)) / float64(d)
			sum += limits[i]
		}
		slices.Sort(limits)
		assert.GreaterOrEqual(t, limits[0], 0.9)
		assert.LessOrEqual(t, limits[n-1], 1.1)
		assert.InDelta(t, 1, sum/n, 0.005)
		for tenth := range 10 { // each holds as many as the others
			assert.InDelta(t, 0.9+0.02*float64(tenth), limits[tenth*n/10], 0.01)
		}
	})
}

func TestAgeLimits(t *testing.T) {
	assert.Equal(t, age{}, newAge(0), "the clock was read for nothing")
	assert.False(t, (&age{}).over())
	assert.False(t, (&age{time.Now().Add(time.Hour)}).over())
	assert.True(t, (&age{time.Now()}).over())
	long := newAge(math.MaxInt64)
	assert.False(t, long.over())
	for given, want := range map[time.Duration]time.Duration{
		-1: -1, 0: 0, 1: time.Second, time.Second: time.Second, time.Minute: time.Minute,
	} {
		assert.Equal(t, want, newEndpointOptions("a:1", []EndpointOption{WithMaxConnAge(given)}).maxAge, "%v", given)
	}
}

// faulty is a connection with writes that fail on demand.
type faulty struct {
	net.Conn
	left *atomic.Int64 // bytes that still go through; below 0: all
}

func (c *faulty) Write(p []byte) (int, error) {
	left := c.left.Load()
	if left < 0 {
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:min(int(left), len(p))])
	c.left.Add(-int64(n))
	return n, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
}

// faults makes connections that fail on demand.
type faults struct {
	made []*faulty
	next error // of the next dial
}

func (f *faults) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if f.next != nil {
		return nil, f.next
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &faulty{conn, new(atomic.Int64)}
	c.left.Store(-1)
	f.made = append(f.made, c)
	return c, nil
}

func (f *faults) breakAll(after int64) {
	for _, c := range f.made {
		c.left.Store(after)
	}
}

// withBody returns a request and its observed body.
func withBody(t testing.TB, text string) (*http.Request, *asked) {
	t.Helper()
	body := &asked{Reader: strings.NewReader(text)}
	req := request(t, http.MethodPost, "http://web/echo", "")
	req.Body, req.ContentLength = body, int64(len(text))
	return req, body
}

func TestEndpointReplacesDeadConnections(t *testing.T) {
	var served atomic.Int32
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		pipe(w, r.Body)
	}))
	// Two idle connections that fail.
	prepare := func(t *testing.T) (*Endpoint, *faults) {
		f := &faults{}
		e := endpoint(t, addr, WithDialContext(f.DialContext))
		var open []*http.Response
		for range 2 {
			rsp, err := e.Call(t.Context(), request(t, "POST", "http://web/", "x"))
			require.NoError(t, err)
			open = append(open, rsp)
		}
		for _, rsp := range open {
			read(t, rsp)
		}
		served.Store(0)
		return e, f
	}
	t.Run("nothing was written", func(t *testing.T) {
		e, f := prepare(t)
		f.breakAll(0)
		req, body := withBody(t, "hello")
		rsp, err := e.Call(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, "hello", read(t, rsp))
		assert.EqualValues(t, 1, served.Load())
		assert.Len(t, f.made, 3, "a new connection")
		assert.Positive(t, body.closes.Load())
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
	t.Run("nothing was written, and there is no new connection", func(t *testing.T) {
		e, f := prepare(t)
		f.breakAll(0)
		f.next = syscall.ECONNREFUSED
		req, body := withBody(t, "hello")
		_, err := e.Call(t.Context(), req)
		assert.ErrorIs(t, err, layer.ErrNotReady)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Zero(t, body.reads.Load()+body.closes.Load(), "a refusal leaves the body alone")
		assert.Zero(t, served.Load())
		assert.Equal(t, 0, e.Describe().State.Get("connections"))
	})
	t.Run("one byte was written", func(t *testing.T) {
		e, f := prepare(t)
		f.breakAll(1)
		req, body := withBody(t, "hello")
		_, err := e.Call(t.Context(), req)
		require.Error(t, err)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Len(t, f.made, 2, "it was tried again")
		assert.Positive(t, body.closes.Load())
		status, code := StatusFromError(err)
		assert.Equal(t, http.StatusBadGateway, status)
		assert.EqualValues(t, grpcUnavailable, code)
	})
	t.Run("a request that is not valid", func(t *testing.T) {
		e, f := prepare(t)
		req, body := withBody(t, "hello")
		req.Header.Set("Bad Name", "x")
		_, err := e.Call(t.Context(), req)
		require.Error(t, err)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Zero(t, body.reads.Load())
		assert.EqualValues(t, 1, body.closes.Load())
		assert.Len(t, f.made, 2)
		assert.Equal(t, 2, e.Describe().State.Get("idle"), "the connection was not to blame")
	})
}

func TestEndpointNewConnectionLost(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	f := &faults{}
	e := endpoint(t, addr, WithDialContext(func(ctx context.Context, network, a string) (net.Conn, error) {
		conn, err := f.DialContext(ctx, network, a)
		f.breakAll(0)
		return conn, err
	}))
	req, body := withBody(t, "hello")
	_, err := e.Call(t.Context(), req)
	assert.ErrorIs(t, err, layer.ErrNotReady)
	assert.Zero(t, body.reads.Load()+body.closes.Load())
	assert.Len(t, f.made, 1)
	status, _ := StatusFromError(err)
	assert.Equal(t, http.StatusBadGateway, status)
}

// A server may respond before it has received the request, for example because it is overloaded.
func TestEndpointResponseBeforeRequest(t *testing.T) {
	sent := make(chan struct{})
	addr := rawServer(t, func(_ int, conn net.Conn) {
		say(conn, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
		sent <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
	})
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		<-sent
		return conn, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 20 {
		e := endpoint(t, addr, WithHTTP1(), WithMaxIdleConns(0), WithConnectTimeout(patience), WithDialContext(dial))
		rsp, err := e.Call(ctx, request(t, "GET", "http://web/", ""))
		require.NoError(t, err)
		assert.Equal(t, http.StatusServiceUnavailable, rsp.StatusCode)
		read(t, rsp)
	}
}

func TestEndpointMalformedResponses(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":      "",
		"not HTTP":     "SSH-2.0-OpenSSH\r\n",
		"half a head":  "HTTP/1.1 200 OK\r\nContent-Le",
		"two lengths":  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"upgrade less": "HTTP/1.1 101 Switching\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, func(_ int, conn net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					say(conn, answer)
				}
			})
			e := endpoint(t, addr)
			rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
			if err == nil {
				_, err = io.ReadAll(rsp.Body)
				rsp.Body.Close()
				if name == "upgrade less" {
					return
				}
			}
			require.Error(t, err)
			assert.NotErrorIs(t, err, layer.ErrNotReady)
			status, _ := StatusFromError(err)
			assert.Equal(t, http.StatusBadGateway, status)
		})
	}
}

func TestEndpointConnectionLostInBody(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		say(w, "half")
		flush(w)
		panic(http.ErrAbortHandler)
	}))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
		require.NoError(t, err)
		got, err := io.ReadAll(rsp.Body)
		assert.Equal(t, "half", string(got))
		assert.Error(t, err)
		assert.NoError(t, rsp.Body.Close())
		require.NoError(t, e.Ready(t.Context()))
		assert.Zero(t, e.Describe().State.Get("in_flight"))
	})
}

// h2Server is a raw HTTP/2 server that has sent its stream limit.
func h2Server(t testing.TB, maxStreams int, handle func(n int, c *rawH2)) (addr string) {
	t.Helper()
	return rawServer(t, func(n int, conn net.Conn) {
		c := newRawH2(conn)
		if c.preface() != nil {
			return
		}
		c.settings(maxStreams)
		handle(n, c)
		c.drain()
	})
}

func TestEndpointH2Rejections(t *testing.T) {
	const internal = 0x2
	for name, tt := range map[string]struct {
		answer  func(c *rawH2, stream uint32)
		refused bool
	}{
		"refused stream":     {func(c *rawH2, s uint32) { c.reset(s, message.CodeRefusedStream) }, true},
		"goaway before it":   {func(c *rawH2, _ uint32) { c.goAway(0) }, true},
		"cancelled":          {func(c *rawH2, s uint32) { c.reset(s, message.CodeCancel) }, false},
		"internal error":     {func(c *rawH2, s uint32) { c.reset(s, internal) }, false},
		"goaway and the end": {func(c *rawH2, s uint32) { c.goAway(s); c.Close() }, false},
		"the end":            {func(c *rawH2, s uint32) { c.Close() }, false},
	} {
		addr := func(t *testing.T) string {
			return h2Server(t, 10, func(n int, c *rawH2) {
				if n == 0 {
					c.respond(c.request(), "the first")
				}
				for s := c.request(); s != 0; s = c.request() {
					tt.answer(c, s)
				}
			})
		}
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr(t), WithHTTP2())
			require.NoError(t, get(t.Context(), e, "/"))
			err := get(t.Context(), e, "/")
			require.Error(t, err)
			assert.Equal(t, tt.refused, errors.Is(err, layer.ErrNotReady), "%v", err)
		})
		t.Run(name+", body unread", func(t *testing.T) {
			e := endpoint(t, addr(t), WithHTTP2())
			require.NoError(t, get(t.Context(), e, "/"))
			req, body := withBody(t, "hello")
			req.Header.Set("Expect", "100-continue")
			_, err := e.Call(t.Context(), req)
			require.Error(t, err)
			assert.Equal(t, tt.refused, errors.Is(err, layer.ErrNotReady), "%v", err)
			assert.Zero(t, body.reads.Load())
			assert.Equal(t, tt.refused, body.closes.Load() == 0)
		})
		t.Run(name+", body read", func(t *testing.T) {
			e := endpoint(t, addr(t), WithHTTP2())
			require.NoError(t, get(t.Context(), e, "/"))
			in, out := io.Pipe()
			go out.Write([]byte("x")) // taken at once or at the end
			req := request(t, http.MethodPost, "http://web/", "")
			body := &asked{Reader: in}
			req.Body, req.ContentLength = body, -1
			_, err := e.Call(t.Context(), req)
			require.Error(t, err)
			if body.reads.Load() > 0 {
				assert.NotErrorIs(t, err, layer.ErrNotReady)
			}
			in.Close()
		})
	}
}

func TestEndpointH2GoAwayReconnects(t *testing.T) {
	finish := make(chan struct{})
	var conns atomic.Int32
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	first := make(chan *rawH2, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := conns.Add(1)
			go func() {
				defer conn.Close()
				c := newRawH2(conn)
				if c.preface() != nil {
					return
				}
				c.settings(1)
				s := c.request()
				if n == 1 {
					first <- c
					<-finish
				}
				c.respond(s, fmt.Sprint("connection ", n))
				c.drain()
			}()
		}
	}()
	e := endpoint(t, l.Addr().String(), WithHTTP2())
	old := make(chan error, 1)
	go func() { old <- get(context.Background(), e, "/") }()
	c := <-first
	assert.ErrorIs(t, get(t.Context(), e, "/"), layer.ErrNotReady, "the one stream is taken")
	// It goes away while it is at its limit: that is not the same as full.
	c.goAway(1)
	require.NoError(t, e.Ready(t.Context()))
	rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
	require.NoError(t, err)
	assert.Equal(t, "connection 2", read(t, rsp))
	assert.Equal(t, 2, e.Describe().State.Get("connections"))
	close(finish)
	assert.NoError(t, <-old, "what was in flight was finished")
}
