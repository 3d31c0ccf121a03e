package tcplayer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
)

// recorder is a connection that records the written bytes.
type recorder struct {
	net.Conn
	mu  sync.Mutex
	all bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.all.Write(p)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

func (r *recorder) wrote() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.all.Bytes())
}

// peer is a server that is dialed at every address.
type peer struct {
	addr  string // the last dialed address
	made  *recorder
	heard chan string // all bytes of the client, decrypted
}

// newPeer serves one connection: by TLS if cfg is not nil.
func newPeer(t *testing.T, cfg *tls.Config) (*peer, func(ctx context.Context, network, addr string) (net.Conn, error)) {
	t.Helper()
	p := &peer{heard: make(chan string, 1)}
	return p, func(_ context.Context, _, addr string) (net.Conn, error) {
		near, far := conntest.Pair(t)
		p.addr, p.made = addr, &recorder{Conn: near}
		go func() {
			defer far.Close()
			var conn net.Conn = far
			if cfg != nil {
				conn = tls.Server(far, cfg)
			}
			said, _ := io.ReadAll(conn)
			p.heard <- string(said)
		}()
		return p.made, nil
	}
}

// The cases of linkerd's proxy (tagged_transport.rs) and of the documentation.
func TestDialerTransports(t *testing.T) {
	speaks, roots := identity(t, "web.default")
	speaks.NextProtos = []string{TransportProtocol}
	plain, _ := identity(t, "web.default")
	plain.Certificates = speaks.Certificates
	ours := &tls.Config{ServerName: "web.default", RootCAs: roots, NextProtos: []string{"h2"}}
	const at, opaque = "10.0.0.1:4321", "10.0.0.1:4143"
	header := func(authority string, p Protocol) *TransportHeader {
		h := NewTransportHeader(4321, authority, p)
		return &h
	}
	for name, tt := range map[string]struct {
		dialer Dialer
		peer   *tls.Config
		addr   string
		first  TransportHeader // zero: none
	}{
		"nothing, cleartext":        {Dialer{}, nil, at, TransportHeader{}},
		"nothing, TLS":              {Dialer{TLS: ours}, plain, at, TransportHeader{}},
		"nothing, peer supports it": {Dialer{TLS: ours}, speaks, at, TransportHeader{}},
		"opaque, cleartext":         {Dialer{Port: 4143, Header: header("", Opaque)}, nil, at, TransportHeader{}},
		"opaque no name":            {Dialer{TLS: ours, Port: 4143, Header: &TransportHeader{}}, speaks, opaque, TransportHeader{Port: 4321}},
		"opaque named with port":    {Dialer{TLS: ours, Port: 4143, Header: header("foo.bar.example.com:5555", Opaque)}, speaks, opaque, TransportHeader{5555, "foo.bar.example.com", Opaque}},
		"opaque named no port":      {Dialer{TLS: ours, Port: 4143, Header: header("foo.bar.example.com", Opaque)}, speaks, opaque, TransportHeader{4321, "", Opaque}},
		"http no name":              {Dialer{TLS: ours, Port: 4143, Header: header("", HTTP1)}, speaks, opaque, TransportHeader{4321, "", HTTP1}},
		"http named with port":      {Dialer{TLS: ours, Port: 4143, Header: header("foo.bar.example.com:5555", HTTP2)}, speaks, opaque, TransportHeader{5555, "foo.bar.example.com", HTTP2}},
		"http named no port":        {Dialer{TLS: ours, Port: 4143, Header: header("foo.bar.example.com", HTTP1)}, speaks, opaque, TransportHeader{4321, "", HTTP1}},
		"gateway on its own port":   {Dialer{TLS: ours, Header: header("foo.bar.example.com:5555", HTTP1)}, speaks, at, TransportHeader{5555, "foo.bar.example.com", HTTP1}},
		"not selected by the peer":  {Dialer{TLS: ours, Port: 4143, Header: header("", HTTP1)}, plain, opaque, TransportHeader{}},
		"a port without a header":   {Dialer{TLS: ours, Port: 4143}, speaks, opaque, TransportHeader{}},
	} {
		t.Run(name, func(t *testing.T) {
			p, dial := newPeer(t, tt.peer)
			tt.dialer.Dial, tt.dialer.Timeout = dial, time.Minute
			conn, err := tt.dialer.DialContext(t.Context(), "tcp", at)
			require.NoError(t, err)
			defer conn.Close()
			assert.Equal(t, tt.addr, p.addr)
			state, secure := TLSState(conn)
			assert.Equal(t, tt.peer != nil, secure)
			assert.NotEqual(t, "h2", state.NegotiatedProtocol)
			_, err = io.WriteString(conn, "a secret")
			require.NoError(t, err)
			if secure {
				require.NoError(t, closeWrite(conn))
			} else {
				require.NoError(t, p.made.Conn.(*net.TCPConn).CloseWrite())
			}
			var first []byte
			if tt.first != (TransportHeader{}) {
				first = tt.first.AppendTo(nil)
			}
			assert.Equal(t, string(first)+"a secret", <-p.heard)
			if secure {
				assert.NotContains(t, string(p.made.wrote()), "a secret")
				assert.NotContains(t, string(p.made.wrote()), headerPreface)
			}
		})
	}
	assert.Equal(t, []string{"h2"}, ours.NextProtos, "the config of the caller is unchanged")
}

// With TLS required, a server without the right certificate receives only the
// handshake.
func TestDialerWrongCertificate(t *testing.T) {
	theirs, _ := identity(t, "other.default")
	_, roots := identity(t, "web.default")
	old, _ := identity(t, "web.default")
	old.MaxVersion = tls.VersionTLS12
	for name, cfg := range map[string]*tls.Config{"in clear": nil, "another name": theirs, "an old TLS": old} {
		t.Run(name, func(t *testing.T) {
			p, dial := newPeer(t, cfg)
			if cfg == nil {
				hearing := dial
				dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := hearing(ctx, network, addr)
					go func() { // responds to any bytes
						<-p.heard
					}()
					return &answering{conn, "HTTP/1.1 400 Bad Request\r\n\r\n"}, err
				}
			}
			d := Dialer{
				TLS:    &tls.Config{ServerName: "web.default", RootCAs: roots, MinVersion: tls.VersionTLS13},
				Header: &TransportHeader{Name: "secret.example.com"}, Port: 4143, Dial: dial, Timeout: time.Minute,
			}
			_, err := d.DialContext(t.Context(), "tcp", "10.0.0.1:4321")
			require.Error(t, err)
			e, ok := errors.AsType[*layer.Error](err)
			require.True(t, ok)
			assert.Equal(t, "dial", e.Layer)
			assert.Equal(t, "10.0.0.1:4143", e.Endpoint)
			assert.Equal(t, "TLS", e.Reason)
			assert.Equal(t, "i/o", ErrorKind(err))
			wrote := p.made.wrote()
			require.NotEmpty(t, wrote)
			assert.Contains(t, []byte{21, 22}, wrote[0], "an alert or a handshake")
			assert.NotContains(t, string(wrote), "secret")
			assert.NotContains(t, string(wrote), headerPreface)
			_, err = p.made.Write(nil)
			require.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

// answering is a connection to a peer that does not use TLS.
type answering struct {
	net.Conn
	text string
}

func (a *answering) Read(p []byte) (int, error) {
	n := copy(p, a.text)
	a.text = a.text[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestDialerTimeout(t *testing.T) {
	near, far := conntest.Pair(t) // far sends nothing
	d := Dialer{TLS: &tls.Config{RootCAs: x509.NewCertPool()}, Timeout: 10 * time.Millisecond}
	d.Dial = func(context.Context, string, string) (net.Conn, error) { return near, nil }
	_, err := d.DialContext(t.Context(), "tcp", "web.default:80")
	require.ErrorIs(t, err, layer.ErrTimeout)
	require.ErrorContains(t, err, "dial web.default:80: timeout (waited 10ms)")
	_, err = io.Copy(io.Discard, far)
	require.NoError(t, err, "it is closed")

	ctx, cancel := context.WithCancelCause(t.Context())
	near, far = conntest.Pair(t)
	go func() {
		io.ReadFull(far, make([]byte, 1)) // the ClientHello
		cancel(errors.New("enough"))
	}()
	d.Timeout = time.Hour
	_, err = d.DialContext(ctx, "tcp", "web.default:80")
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, layer.ErrTimeout)
}

// A timeout of the header is an error.
func TestDialerWriteTimeout(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		io.ReadFull(far, make([]byte, 1))
		cancel()
	}()
	require.Error(t, write(ctx, near, make([]byte, 8)))
}

func TestDialerDenies(t *testing.T) {
	dialled := 0
	d := Dialer{Deny: DenyLoopback, TLS: &tls.Config{}, Port: 4143, Dial: func(context.Context, string, string) (net.Conn, error) {
		dialled++
		near, _ := conntest.Pair(t)
		return near, nil
	}}
	for _, addr := range []string{"127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80", "0.0.0.0:80", "[::]:80"} {
		_, err := d.DialContext(t.Context(), "tcp", addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, addr)
		require.ErrorContains(t, err, "address denied: loopback is not allowed")
		assert.NotErrorIs(t, err, layer.ErrNotReady)
		assert.Equal(t, "i/o", ErrorKind(err))
	}
	assert.Zero(t, dialled)
	_, err := d.DialContext(t.Context(), "tcp", "localhost:80")
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "which is known once it is connected")
	assert.Equal(t, 1, dialled)

	require.NoError(t, DenyLoopback(netip.MustParseAddrPort("10.0.0.1:80")))
	require.Error(t, DenyLoopback(netip.AddrPort{}))
}

func TestDialerErrors(t *testing.T) {
	why := errors.New("no way")
	d := Dialer{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, why }}
	_, err := d.DialContext(t.Context(), "tcp", "10.0.0.1:80")
	require.ErrorIs(t, err, why)
	d.TLS = &tls.Config{}
	_, err = d.DialContext(t.Context(), "tcp", "10.0.0.1")
	require.ErrorContains(t, err, "dial 10.0.0.1: address 10.0.0.1: missing port in address")
	d.Header = &TransportHeader{Name: "-"}
	_, err = d.DialContext(t.Context(), "tcp", "10.0.0.1:80")
	require.ErrorContains(t, err, `transport header name "-" must be a DNS name`)
	closed, _ := conntest.Pair(t)
	closed.Close()
	d = Dialer{Sockets: []SocketOption{nil, WithUserTimeout(time.Second)}, Dial: func(context.Context, string, string) (net.Conn, error) { return closed, nil }}
	_, err = d.DialContext(t.Context(), "tcp", "10.0.0.1:80")
	require.ErrorIs(t, err, net.ErrClosed)

	l, err := net.Listen("tcp", "127.0.0.94:0") // an address that no other test uses
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = new(Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// An Endpoint connects through the mesh. The header has the destination's port,
// and the connection uses its address.
func TestEndpointMesh(t *testing.T) {
	cfg, roots := identity(t, "web.default")
	cfg.NextProtos = []string{TransportProtocol}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	direct := DetectTransport(TransportServers{Header: stating()})
	go func() {
		served <- Serve(ctx, l, DetectTLS(cfg, MatchServerName("web.default"), TLSServers{Terminate: direct}))
	}()
	d := &Dialer{
		TLS: &tls.Config{RootCAs: roots, ServerName: "web.default"}, Header: &TransportHeader{Protocol: HTTP1},
		Port: addrPort(l.Addr()).Port(), Sockets: []SocketOption{WithKeepAlive(net.KeepAliveConfig{Enable: true})},
	}
	e := NewEndpoint(t.Context(), "127.0.0.1:"+strconv.Itoa(8080), WithDialContext(d.DialContext), WithConnectTimeout(time.Minute))
	conn, err := e.Call(t.Context(), Request{})
	require.NoError(t, err)
	io.WriteString(conn, "hello")
	require.NoError(t, closeWrite(conn))
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, `8080 "" HTTP/1, header true, address is its true, asked for it true, TLS true: hello`, string(got))
	conn.Close()
	end()
	require.NoError(t, <-served)
}
