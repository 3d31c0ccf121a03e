package h2

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
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

func TestMain(m *testing.M) { enginetest.Main(m) }

// testTimeout is the longest wait for what must happen, on a loaded machine.
const testTimeout = time.Minute

// testServer serves connections of a listener.
type testServer struct {
	cfg  message.ServerConfig
	addr string

	mu    sync.Mutex
	conns map[*ServerConn]struct{}
	wg    sync.WaitGroup
}

// serve starts a server. The connections end with the test.
func serve(t testing.TB, cfg message.ServerConfig) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, l, cfg)
}

// serveInMemory starts a server on a network in memory, for a synctest bubble, and returns
// a connection to it.
func serveInMemory(t testing.TB, cfg message.ServerConfig) net.Conn {
	t.Helper()
	var network layertest.Network
	l, err := network.Listen("tcp", "10.0.0.1:80")
	require.NoError(t, err)
	serveOn(t, l, cfg)
	nc, err := network.DialContext(t.Context(), "tcp", "10.0.0.1:80")
	require.NoError(t, err)
	return nc
}

func serveOn(t testing.TB, l net.Listener, cfg message.ServerConfig) *testServer {
	if cfg.Sweeper == nil {
		cfg.Sweeper = new(sweep.Sweeper)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, testTimeout)
	s := &testServer{cfg: cfg, addr: l.Addr().String(), conns: make(map[*ServerConn]struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	s.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			c := NewServerConn(ctx, nc, &s.cfg)
			s.mu.Lock()
			s.conns[c] = struct{}{}
			s.mu.Unlock()
			s.wg.Go(func() {
				_ = c.Serve()
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		cancel()
		s.wg.Wait()
	})
	return s
}

// open returns the connections that have not ended.
func (s *testServer) open() (all []*ServerConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

// dial opens a client connection, which ends with the test.
func dial(t testing.TB, addr string, cfg *ClientConfig) *ClientConn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	c := NewClientConn(nc, cfg)
	t.Cleanup(func() {
		_ = c.Close()
		<-c.Done()
	})
	return c
}

// transport is an http.RoundTripper over one connection.
type transport struct{ c *ClientConn }

func (tr transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for !tr.c.Reserve() {
		select {
		case <-tr.c.Done():
			return nil, errors.Join(message.ErrNotSent, tr.c.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return tr.c.RoundTrip(req)
}

// proxy serves a proxy to addr, over one connection.
func proxy(t testing.TB, addr string, cfg message.ServerConfig, client ClientConfig) *testServer {
	t.Helper()
	to := transport{dial(t, addr, &client)}
	cfg.Exchange = to.RoundTrip
	return serve(t, cfg)
}

// clearText returns a client of net/http for HTTP/2 with prior knowledge.
func clearText(t testing.TB) *http.Client {
	tr := &http.Transport{Protocols: h2c(), DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: testTimeout}
}

func h2c() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// standard serves a handler with net/http.
func standard(t testing.TB, h http.Handler) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &http.Server{Handler: h, Protocols: h2c(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return l.Addr().String()
}

// request returns a request for addr with a context that ends with the test.
func request(t testing.TB, method, addr, path string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, body)
	require.NoError(t, err)
	return req
}

// read returns the whole body of a response, and closes it.
func read(t testing.TB, rsp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	return string(b)
}

// eventually waits for a condition.
func eventually(t testing.TB, condition func() bool, text string) {
	t.Helper()
	assert.Eventually(t, condition, testTimeout/2, 2*time.Millisecond, text)
}

func mustParse(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

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
