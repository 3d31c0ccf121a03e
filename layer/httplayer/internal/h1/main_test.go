package h1

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/enginetest"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
	"github.com/gotower/gotower/layer/layertest"
)

// patience is the longest wait for what must happen, on a loaded machine.
const patience = time.Minute

func TestMain(m *testing.M) { enginetest.Main(m) }

// pool is a simple upstream: idle connections, and dialing.
type pool struct {
	dial func(ctx context.Context) (net.Conn, error)
	free func(c *ClientConn, reusable bool)

	mu       sync.Mutex
	idle     []*ClientConn
	dials    int
	trips    int
	released int
}

func newPool(t testing.TB, addr string) *pool {
	p := &pool{dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}}
	p.free = func(c *ClientConn, reusable bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.released++
		if reusable {
			p.idle = append(p.idle, c)
		}
	}
	t.Cleanup(p.close)
	return p
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		c.Close()
	}
	p.idle = nil
}

func (p *pool) get(ctx context.Context) (*ClientConn, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.dials++
	p.mu.Unlock()
	conn, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	return NewClientConn(conn, p.free), nil
}

func (p *pool) counts() (dials, released, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials, p.released, len(p.idle)
}

func (p *pool) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		c, err := p.get(req.Context())
		if err != nil {
			message.CloseBody(req)
			return nil, err
		}
		p.mu.Lock()
		p.trips++
		p.mu.Unlock()
		rsp, err := c.RoundTrip(req)
		if !errors.Is(err, message.ErrNotSent) {
			return rsp, err
		}
	}
}

// server serves connections by the engine until the test ends.
type server struct {
	addr   string
	cfg    *message.ServerConfig
	mu     sync.Mutex
	conns  map[*ServerConn]struct{}
	errs   []error
	done   sync.WaitGroup
	cancel context.CancelCauseFunc
}

func (s *server) all() (conns []*ServerConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// readsAhead waits until a connection has read ahead for so long that a client that closes it is not
// taken for a half-closed one.
func (s *server) readsAhead(t testing.TB) {
	t.Helper()
	assert.Eventually(t, func() bool {
		return slices.ContainsFunc(s.all(), func(c *ServerConn) bool { return c.ahead.Load() == aheadRunning })
	}, patience, time.Millisecond)
	time.Sleep(time.Second)
}

func (s *server) errors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.errs...)
}

func serve(t testing.TB, cfg *message.ServerConfig) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, l, cfg)
}

// serveInMemory serves on a network in memory, for a synctest bubble. It returns a function
// that connects to the server.
func serveInMemory(t testing.TB, cfg *message.ServerConfig) (dial func() net.Conn) {
	var network layertest.Network
	l, err := network.Listen("tcp", "10.0.0.1:80")
	require.NoError(t, err)
	serveOn(t, l, cfg)
	return func() net.Conn {
		conn, err := network.DialContext(t.Context(), "tcp", "10.0.0.1:80")
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		return conn
	}
}

func serveOn(t testing.TB, l net.Listener, cfg *message.ServerConfig) *server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Sweeper = new(sweep.Sweeper)
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &server{addr: l.Addr().String(), cfg: cfg, conns: make(map[*ServerConn]struct{}), cancel: cancel}
	s.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c := NewServerConn(ctx, conn, cfg)
			s.mu.Lock()
			s.conns[c] = struct{}{}
			s.mu.Unlock()
			s.done.Go(func() {
				err := c.Serve()
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.conns, c)
				if err != nil {
					s.errs = append(s.errs, err)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel(errors.New("test ends"))
		s.done.Wait()
	})
	return s
}

// proxy serves an exchange that sends requests to the address.
func proxy(t testing.TB, upstream string) (*server, *pool) {
	p := newPool(t, upstream)
	return serve(t, &message.ServerConfig{Exchange: p.RoundTrip}), p
}

func upstream(t testing.TB, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// client is a net/http client.
func client(t testing.TB) *http.Client {
	transport := &http.Transport{ExpectContinueTimeout: time.Minute, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func dial(t testing.TB, addr string) net.Conn {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// exchangeRaw sends text and returns what arrives until the end of the connection.
func exchangeRaw(t testing.TB, addr, text string) string { return exchangeOn(t, dial(t, addr), text) }

func exchangeOn(t testing.TB, conn net.Conn, text string) string {
	defer conn.Close()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	got, err := io.ReadAll(conn)
	assert.NoError(t, err)
	return string(got)
}

func readAll(t testing.TB, rsp *http.Response) string {
	defer rsp.Body.Close()
	b, err := io.ReadAll(rsp.Body)
	assert.NoError(t, err)
	return string(b)
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for name, values := range r.Header {
		if strings.HasPrefix(name, "X-") {
			w.Header()[name] = values
		}
	}
	w.Header().Set("X-Method", r.Method)
	w.Header().Set("X-Uri", r.RequestURI)
	w.Header().Set("X-Host", r.Host)
	w.Header().Set("X-Proto", r.Proto)
	w.Write(b)
}

// Stale reports whether RoundTrip would reject the next request, because either side has
// closed the connection or the server has sent bytes.
func (c *ClientConn) Stale() bool { return c.cause.Load() != nil || c.readable() }

// handled returns an exchange that h serves.
func handled(h http.HandlerFunc) message.Exchange { return handledBy(http.Handler(h)) }

func handledBy(h http.Handler) message.Exchange {
	s := &http.Server{Handler: h}
	return func(req *http.Request) (*http.Response, error) { return message.Handle(req.Context(), s, req) }
}

// RoundTrip calls Call with the context of req, so that tests can use the connection as an
// [http.RoundTripper].
func (c *ClientConn) RoundTrip(req *http.Request) (*http.Response, error) {
	return c.Call(req.Context(), req)
}
