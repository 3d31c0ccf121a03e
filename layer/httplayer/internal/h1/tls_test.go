package h1

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Interruptions of a read and the look for a stale connection work through TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	t.Cleanup(certificate.Close)
	cfg := &tls.Config{Certificates: certificate.TLS.Certificates}
	waiting, gone := make(chan struct{}), make(chan error, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := serveOn(t, tls.NewListener(l, cfg), &message.ServerConfig{Exchange: handled(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			close(waiting)
			<-r.Context().Done()
			gone <- context.Cause(r.Context())
			return
		}
		time.Sleep(50 * time.Millisecond) // reading ahead begins
		echo(w, r)
	})})
	p := newPool(t, s.addr)
	p.dial = func(ctx context.Context) (net.Conn, error) {
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		return d.DialContext(ctx, "tcp", s.addr)
	}
	for range 3 {
		req, err := http.NewRequest(http.MethodPost, "http://a/", io.MultiReader(strings.NewReader(strings.Repeat("x", 50_000))))
		require.NoError(t, err)
		rsp, err := p.RoundTrip(req)
		require.NoError(t, err)
		assert.Len(t, readAll(t, rsp), 50_000)
		require.Eventually(t, func() bool { return s.all()[0].slot.Phase() == phaseRest }, patience, time.Millisecond)
	}
	dials, _, idle := p.counts()
	assert.Equal(t, []int{1, 1}, []int{dials, idle})

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-waiting
		s.readsAhead(t)
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a/wait", nil)
	require.NoError(t, err)
	_, err = p.RoundTrip(req)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-gone, errClientLeft)

	req, err = http.NewRequest(http.MethodGet, "http://a/", nil)
	require.NoError(t, err)
	rsp, err := p.RoundTrip(req)
	require.NoError(t, err)
	readAll(t, rsp)
	c, err := p.get(t.Context())
	require.NoError(t, err)
	assert.False(t, c.Stale())
	for _, conn := range s.all() {
		conn.CloseIdle()
	}
	require.Eventually(t, c.Stale, patience, time.Millisecond)
	c.Close()
}

// A response that the TLS connection has read before the request is not the response of that request.
func TestTLSExtraResponse(t *testing.T) {
	t.Parallel()
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	t.Cleanup(certificate.Close)
	const size = 20_000
	addr := script(t, func(conn net.Conn, _ *bufio.Reader) {
		secure := tls.Server(conn, &tls.Config{Certificates: certificate.TLS.Certificates})
		if _, err := http.ReadRequest(bufio.NewReader(secure)); err == nil {
			fmt.Fprintf(secure, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%sHTTP/1.1 200 OK\r\n\r\n", size, strings.Repeat("x", size))
			io.Copy(io.Discard, secure)
		}
	})
	p := newPool(t, addr)
	p.dial = func(ctx context.Context) (net.Conn, error) {
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		return d.DialContext(ctx, "tcp", addr)
	}
	dial := p.dial
	for range 2 {
		rsp, err := get(t, t.Context(), p)
		require.NoError(t, err)
		assert.Len(t, readAll(t, rsp), size)
		c, err := p.get(t.Context())
		require.NoError(t, err)
		defer c.Close()
		require.Eventually(t, c.Stale, patience/2, time.Millisecond)
		p.dial = func(ctx context.Context) (net.Conn, error) { // with a wrapper
			conn, err := dial(ctx)
			return &message.AheadConn{Conn: conn}, err
		}
	}
}
