package h2

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// TestTLS has TLS connections of crypto/tls on each side of a proxy.
func TestTLS(t *testing.T) {
	t.Parallel()
	origin := httptest.NewUnstartedServer(handler())
	origin.EnableHTTP2 = true
	origin.StartTLS()
	defer origin.Close()
	pool := origin.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs

	nc, err := tls.Dial("tcp", origin.Listener.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "example.com", NextProtos: []string{"h2"}})
	require.NoError(t, err)
	up := NewClientConn(nc, &ClientConfig{Secure: true})
	defer func() {
		_ = up.Close()
		<-up.Done()
	}()
	cfg := message.ServerConfig{Exchange: transport{up}.RoundTrip, Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler)}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: origin.TLS.Certificates, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer l.Close()
	conns := make(chan *ServerConn, 1)
	served := make(chan error, 1)
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		c := NewServerConn(context.Background(), nc, &cfg)
		conns <- c
		served <- c.Serve()
	}()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "example.com"}, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: testTimeout}
	body := strings.Repeat("x", 3<<20)
	for range 3 {
		rsp, err := client.Post("https://"+l.Addr().String()+"/echo", "", strings.NewReader(body))
		require.NoError(t, err)
		assert.Equal(t, 2, rsp.ProtoMajor)
		assert.Len(t, read(t, rsp), len(body))
		time.Sleep(4 * sweep.Interval)
	}
	(<-conns).Drain()
	require.Error(t, <-served)
}

// TestVirtualTime runs both ends in a bubble, over an in-memory connection.
func TestVirtualTime(t *testing.T) {
	for range 3 { // a bubble uses the pooled buffers of the one before
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			cfg := message.ServerConfig{
				Exchange: handledBy(handler()), Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler),
				IdleTimeout: 5 * time.Minute, PingInterval: 10 * time.Second, DrainTimeout: time.Second,
			}
			s := NewServerConn(t.Context(), a, &cfg)
			served := make(chan error, 1)
			go func() { served <- s.Serve() }()
			c := NewClientConn(b, &ClientConfig{PingInterval: 10 * time.Second})
			<-c.Settled()
			for range 5 {
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://h/echo", strings.NewReader(strings.Repeat("x", 300<<10)))
				require.NoError(t, err)
				require.True(t, c.Reserve())
				rsp, err := c.RoundTrip(req)
				require.NoError(t, err)
				n, err := io.Copy(io.Discard, rsp.Body)
				require.NoError(t, err)
				assert.EqualValues(t, 300<<10, n)
				require.NoError(t, rsp.Body.Close())
				time.Sleep(time.Minute) // PINGs keep the connection alive
			}
			assert.True(t, c.Usable())
			time.Sleep(5 * time.Minute)
			<-c.Done()
			require.Error(t, <-served)
		})
	}
}
