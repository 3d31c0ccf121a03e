package httplayer_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

var errBoom = errors.New("boom")

// A panic of a dial function, or of a callback of TLS, is a failure to connect.
func TestEndpointPanic(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	cfg := &tls.Config{
		InsecureSkipVerify: true,
		VerifyConnection:   func(tls.ConnectionState) error { panic(errBoom) },
	}
	for name, opts := range map[string][]httplayer.EndpointOption{
		"dial, HTTP/1.1": {httplayer.WithHTTP1(), httplayer.WithDialContext(func(context.Context, string, string) (net.Conn, error) { panic(errBoom) })},
		"dial, HTTP/2":   {httplayer.WithHTTP2(), httplayer.WithDialContext(func(context.Context, string, string) (net.Conn, error) { panic(errBoom) })},
		"TLS":            {httplayer.WithTLS(cfg), httplayer.WithHTTP1()},
	} {
		t.Run(name, func(t *testing.T) {
			e := httplayer.NewEndpoint(t.Context(), s.Listener.Addr().String(), opts...)
			_, err := e.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			require.ErrorIs(t, err, layer.ErrNotReady)
			var panicked *layer.PanicError
			require.ErrorAs(t, err, &panicked)
			require.Equal(t, errBoom, panicked.Value)
		})
	}
}

// A panic of the body of a request, which net/http reads and closes on a goroutine of
// its own, is an error of the body.
func TestRequestBodyPanic(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	for name, opt := range map[string]httplayer.EndpointOption{"HTTP/1.1": httplayer.WithHTTP1(), "HTTP/2": httplayer.WithHTTP2()} {
		t.Run(name, func(t *testing.T) {
			e := httplayer.NewEndpoint(t.Context(), s.Listener.Addr().String(), opt)
			req := httptest.NewRequest(http.MethodPost, "/", brittleBody{})
			_, err := e.Call(t.Context(), req)
			var panicked *layer.PanicError
			require.ErrorAs(t, err, &panicked)
			require.NotErrorIs(t, err, layer.ErrNotReady)

			req = httptest.NewRequest(http.MethodPost, "/", brittleClose{strings.NewReader("body")})
			rsp, err := e.Call(t.Context(), req)
			if err == nil { // net/http may drop what Close returns
				require.NoError(t, rsp.Body.Close())
			} else {
				require.ErrorAs(t, err, &panicked)
			}
		})
	}
}

type brittleBody struct{}

func (brittleBody) Read([]byte) (int, error) { panic(errBoom) }
func (brittleBody) Close() error             { panic(errBoom) }

type brittleClose struct{ io.Reader }

func (brittleClose) Close() error { panic(errBoom) }

type brittleTunnel struct{ io.Writer }

func (brittleTunnel) Read([]byte) (int, error) { panic(errBoom) }
func (brittleTunnel) Close() error             { return nil }

// A panic in a copy of a tunnel ends the tunnel, on both sides.
func TestTunnelPanic(t *testing.T) {
	client, peer := net.Pipe()
	require.Error(t, message.Tunnel(t.Context(), client, brittleTunnel{}))
	_, err := peer.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
