package reliability

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/layertest"
)

// dayEndpoint is a server on an in-memory network that can fail. It records the requests that it
// receives.
type dayEndpoint struct {
	network *layertest.Network
	addr    netip.AddrPort
	arrived func(request string) // called at the start of each request

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	l       net.Listener  // nil while the endpoint is down
	stalled chan struct{} // closed when the stall ends; nil without one
	served  int           // number of requests

	serving sync.WaitGroup
}

func (e *dayEndpoint) start(t testing.TB) {
	l, err := e.network.Listen("tcp", e.addr.String())
	require.NoError(t, err)
	srv := &http.Server{Handler: e, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.l, e.conns = l, make(map[net.Conn]struct{})
	e.serving.Go(func() { _ = srv.Serve(dayListener{l, e}) })
}

// crash closes the listener and aborts all connections.
func (e *dayEndpoint) crash() {
	e.mu.Lock()
	l := e.l
	e.l = nil
	e.mu.Unlock()
	_ = l.Close()
	e.abort()
	e.serving.Wait()
}

func (e *dayEndpoint) abort() {
	e.mu.Lock()
	conns := e.conns
	e.conns = make(map[net.Conn]struct{})
	e.mu.Unlock()
	for conn := range conns {
		_ = conn.Close()
	}
}

// stall makes the connections neither read nor write until the returned function is called.
func (e *dayEndpoint) stall() (end func()) {
	ended := make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stalled = ended
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.stalled = nil
		close(ended)
	}
}

func (e *dayEndpoint) requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served
}

// ServeHTTP reads the request, and responds with a body of the requested size, in parts with the
// requested pause between them. The header X-Got contains the request body's size.
func (e *dayEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.served++
	e.mu.Unlock()
	e.arrived(r.Header.Get("X-Request"))
	time.Sleep(time.Duration(1+rand.IntN(20)) * time.Millisecond)
	got, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	query := r.URL.Query()
	size, _ := strconv.Atoi(query.Get("size"))
	pause, _ := time.ParseDuration(query.Get("pause"))
	w.Header().Set("X-Got", strconv.FormatInt(got, 10))
	w.Header().Set("Content-Length", strconv.Itoa(size))
	for part := make([]byte, dayPart); size > 0; size -= len(part) {
		part = part[:min(size, len(part))]
		if _, err := w.Write(part); err != nil {
			return
		}
		if pause > 0 {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
		}
	}
}

// dayPart is the size of each part of a response body.
const dayPart = 32 << 10

// dayListener accepts an endpoint's connections.
type dayListener struct {
	net.Listener
	e *dayEndpoint
}

func (l dayListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.e.conns[conn] = struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	return &dayConn{conn, l.e, ctx, cancel}, nil
}

// dayConn is an endpoint's connection. It does nothing during a stall. Its context ends when it is
// closed.
type dayConn struct {
	net.Conn
	e      *dayEndpoint
	closed context.Context
	cancel context.CancelFunc
}

func (c *dayConn) wait() {
	c.e.mu.Lock()
	stalled := c.e.stalled
	c.e.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-c.closed.Done():
		}
	}
}

// Read reads first, because a Read that began before a stall must not return during it.
func (c *dayConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wait()
	return n, err
}

func (c *dayConn) Write(p []byte) (int, error) {
	c.wait()
	return c.Conn.Write(p)
}

func (c *dayConn) Close() error {
	c.cancel()
	c.e.mu.Lock()
	delete(c.e.conns, c.Conn)
	c.e.mu.Unlock()
	return c.Conn.Close()
}
