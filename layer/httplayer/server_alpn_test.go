package httplayer

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	xhttp2 "golang.org/x/net/http2" //nolint:depguard // its Framer is the raw client

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

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
				s, done := NewServer(http.HandlerFunc(shapes), WithHeaderTimeout(4*time.Second)), make(chan error, 1)
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
