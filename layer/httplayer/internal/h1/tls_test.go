package h1

import (
	"context"
	"crypto/tls"
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
	gone := make(chan error, 1)
	s := serveWith(t, &message.ServerConfig{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
			gone <- context.Cause(r.Context())
			return
		}
		time.Sleep(50 * time.Millisecond) // reading ahead begins
		echo(w, r)
	})}, func(conn net.Conn) net.Conn { return tls.Server(conn, cfg) })
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
		require.Eventually(t, func() bool { return s.all()[0].slot.Phase() == phaseRest }, 5*time.Second, time.Millisecond)
	}
	dials, _, idle := p.counts()
	assert.Equal(t, []int{1, 1}, []int{dials, idle})

	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a/wait", nil)
	require.NoError(t, err)
	_, err = p.RoundTrip(req)
	require.ErrorIs(t, err, context.DeadlineExceeded)
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
	require.Eventually(t, c.Stale, 5*time.Second, time.Millisecond)
	c.Close()
}
