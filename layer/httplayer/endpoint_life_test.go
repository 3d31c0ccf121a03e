package httplayer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
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
		c, err := e.h2.connect()
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
