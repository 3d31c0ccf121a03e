package tcplayer_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// fed is a listener of connections accepted by another listener.
type fed struct {
	conns chan net.Conn
	done  chan struct{}
	at    net.Addr
}

func (f *fed) Accept() (net.Conn, error) {
	select {
	case conn := <-f.conns:
		return conn, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *fed) Close() error   { return nil }
func (f *fed) Addr() net.Addr { return f.at }

// wrapped hides TLS from net/http, as a proxy does. The server handles the
// connection as cleartext.
type wrapped struct {
	net.Conn
	closed chan struct{}
}

func (w *wrapped) Close() error {
	err := w.Conn.Close()
	select {
	case <-w.closed:
	default:
		close(w.closed)
	}
	return err
}

// HTTP/1.1 and HTTP/2 work over TLS of the mesh without ALPN, through an
// endpoint of httplayer.
func TestDialerHTTP(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	certified.Close()
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	inside := &fed{conns: make(chan net.Conn), done: make(chan struct{}), at: l.Addr()}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			h, _ := r.Context().Value(headerKey{}).(tcplayer.TransportHeader)
			fmt.Fprintf(w, "%s %s %v by %d", r.Proto, body, h.Protocol, h.Port)
		}),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, headerKey{}, conn.(*wrapped).Conn.(headedConn).header)
		},
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(inside)
	hand := layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		h, _ := tcplayer.TransportHeaderFromContext(ctx)
		w := &wrapped{headedConn{conn, h}, make(chan struct{})}
		inside.conns <- w
		<-w.closed
		return tcplayer.ByteCount{}, nil
	})
	direct := tcplayer.DetectTransport(tcplayer.TransportServers{Header: hand, None: hand})
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	cfg := certified.TLS.Clone()
	cfg.NextProtos = []string{tcplayer.TransportProtocol}
	tlsServer := tcplayer.DetectTLS(cfg, tcplayer.MatchServerName("example.com"), tcplayer.TLSServers{Terminate: direct})
	go func() { served <- tcplayer.Serve(ctx, l, tlsServer) }()

	for name, tt := range map[string]struct {
		protocol httplayer.EndpointOption
		header   *tcplayer.TransportHeader
		want     string
	}{
		"HTTP/2":           {httplayer.WithHTTP2(), nil, "HTTP/2.0 hello opaque by 0"},
		"HTTP/1":           {httplayer.WithHTTP1(), nil, "HTTP/1.1 hello opaque by 0"},
		"HTTP/2, a header": {httplayer.WithHTTP2(), &tcplayer.TransportHeader{Port: 8080, Protocol: tcplayer.HTTP2}, "HTTP/2.0 hello HTTP/2 by 8080"},
		"HTTP/1, a header": {httplayer.WithHTTP1(), &tcplayer.TransportHeader{Port: 8080, Protocol: tcplayer.HTTP1}, "HTTP/1.1 hello HTTP/1 by 8080"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &tcplayer.Dialer{TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}, Header: tt.header}
			for what, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
				"plain": d.DialContext, "metered": tcplayer.NewMeter(tcplayer.Instruments{}).WrapDial(d.DialContext),
			} {
				life, over := context.WithCancel(t.Context())
				e := httplayer.NewEndpoint(life, l.Addr().String(), tt.protocol,
					httplayer.WithDialContext(dial), httplayer.WithConnectTimeout(time.Minute))
				for range 3 {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web.default/", strings.NewReader("hello"))
					require.NoError(t, err)
					rsp, err := e.Call(t.Context(), req)
					require.NoError(t, err, what)
					body, err := io.ReadAll(rsp.Body)
					require.NoError(t, err)
					require.NoError(t, rsp.Body.Close())
					assert.Equal(t, tt.want, string(body), what)
				}
				over()
			}
		})
	}
	end()
	require.NoError(t, <-served)
	close(inside.done)
	require.NoError(t, server.Close())
}

type headerKey struct{}

type headedConn struct {
	net.Conn
	header tcplayer.TransportHeader
}
