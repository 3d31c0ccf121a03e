package identity

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

const waits = 30 * time.Second // for what must come at last

// saying answers a connection with the identity of its client, and the protocol that was
// agreed on.
func saying() tcplayer.Server {
	return layer.Func[net.Conn, tcplayer.ByteCount](func(_ context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		defer conn.Close()
		said, err := io.ReadAll(conn)
		state, _ := tcplayer.TLSState(conn)
		name, ok := PeerIdentity(state)
		if !ok {
			name = "a stranger"
		}
		io.WriteString(conn, name+" says "+string(said)+" "+state.NegotiatedProtocol)
		return tcplayer.ByteCount{}, err
	})
}

// served is a server behind DetectTLS, until the test is over.
func served(t testing.TB, cfg *tls.Config, name string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	svc := tcplayer.DetectTLS(cfg, tcplayer.MatchServerName(name), tcplayer.TLSServers{Terminate: saying()})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- tcplayer.Serve(ctx, l, svc) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return l.Addr().String()
}

// sendText connects through an Endpoint, sends a text, and returns the response.
func sendText(t testing.TB, addr string, cfg *tls.Config, what string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waits)
	defer cancel()
	e := tcplayer.NewEndpoint(ctx, addr, tcplayer.WithTLS(cfg), tcplayer.WithConnectTimeout(waits))
	conn, err := e.Call(ctx, tcplayer.Request{})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, what); err != nil {
		return "", err
	}
	if err := conn.(*tls.Conn).CloseWrite(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(conn)
	return string(got), err
}

func TestMutualTLS(t *testing.T) {
	a := newAuthority(t)
	for name, tt := range map[string]struct{ client, server, sni string }{
		"DNS-like":         {web, other, ""},
		"in another case":  {web, "Other.Default.serviceaccount.identity.linkerd.cluster.local", ""},
		"URI":              {spiffe, "spiffe://cluster.local/ns/default/sa/other", "other.default"},
		"URI and DNS-like": {spiffe, other, other},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := a.static(tt.client), a.static(tt.server)
			sni := tt.sni
			if sni == "" {
				sni = server.ServerName()
			}
			addr := served(t, server.Server(), sni)
			got, err := sendText(t, addr, client.Client(tt.sni, tt.server), "hello")
			require.NoError(t, err)
			assert.Equal(t, tt.client+" says hello ", got)
			got, err = sendText(t, addr, client.Client(tt.sni, tt.server, "h2"), "hello")
			require.NoError(t, err, "ALPN is ignored")
			assert.Equal(t, tt.client+" says hello ", got)

			addr = served(t, server.Server("transport.l5d.io/v1"), sni)
			got, err = sendText(t, addr, client.Client(tt.sni, tt.server, "transport.l5d.io/v1"), "hello")
			require.NoError(t, err)
			assert.Equal(t, tt.client+" says hello transport.l5d.io/v1", got)
			_, err = sendText(t, addr, client.Client(tt.sni, tt.server, "h2"), "hello")
			require.ErrorContains(t, err, "no application protocol")
		})
	}
}

// The verification of clients by a server.
func TestServer(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	server := a.static(web)
	addr := served(t, server.Server(), web)
	for name, tt := range map[string]struct {
		cert       []tls.Certificate
		max        uint16
		want, says string
	}{
		"no certificate":       {want: "a stranger says hello "},
		"a good one":           {cert: []tls.Certificate{a.pair(other, time.Hour)}, want: other + " says hello "},
		"of another authority": {cert: []tls.Certificate{stranger.pair(other, time.Hour)}, says: "tls: unknown certificate authority"},
		"expired":              {cert: []tls.Certificate{a.pair(other, -time.Second)}, says: "tls: expired certificate"},
		"TLS 1.2":              {max: tls.VersionTLS12, says: "protocol version not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &tls.Config{ServerName: web, RootCAs: a.pool(), MaxVersion: tt.max, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(tt.cert) == 0 {
					return &tls.Certificate{}, nil
				}
				return &tt.cert[0], nil
			}}
			if tt.says != "" {
				conn, err := tls.Dial("tcp", addr, cfg)
				if err == nil { // in TLS 1.3 the client is done first
					_, err = io.ReadAll(conn)
					conn.Close()
				}
				require.ErrorContains(t, err, tt.says)
				return
			}
			got, err := sendText(t, addr, cfg, "hello")
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

// Handshakes fail without a certificate and after its expiration (G1 of linkerd's
// tests), on a client too if the server asks for one.
func TestHandshakeWithoutCertificate(t *testing.T) {
	a := newAuthority(t)
	peer := a.static(other)
	i, err := New(a.config(web))
	require.NoError(t, err)
	own, theirs := served(t, i.Server(), web), served(t, peer.Server(), other)
	check := func(why string) {
		t.Helper()
		_, err := sendText(t, own, peer.Client("", web), "hello")
		require.ErrorContains(t, err, "tls: internal error")
		_, err = sendText(t, theirs, i.Client("", other), "hello")
		require.ErrorContains(t, err, why)
		got, err := sendText(t, theirs, i.Bootstrap("", other), "hello")
		require.NoError(t, err)
		assert.Equal(t, "a stranger says hello ", got)
		_, err = sendText(t, theirs, i.Bootstrap(other, web), "hello")
		require.ErrorIs(t, err, ErrPeerIdentity, "the server must prove its name all the same")
	}
	check("no certificate yet")
	i.use(&certificate{a.pair(web, time.Hour), time.Now().Add(time.Hour)})
	got, err := sendText(t, own, peer.Client("", web), "hello")
	require.NoError(t, err)
	assert.Equal(t, other+" says hello ", got)
	for _, cfg := range []*tls.Config{i.Client("", other), i.Bootstrap("", other)} {
		got, err = sendText(t, theirs, cfg, "hello")
		require.NoError(t, err)
		assert.Equal(t, web+" says hello ", got)
	}
	i.use(&certificate{a.pair(web, -time.Hour), time.Now().Add(-time.Hour)})
	check("the certificate expired at ")
}

func TestStatic(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	good := a.pair(web, time.Hour)
	for want, try := range map[string]func() (*Identity, error){
		"Static needs a certificate, its key and roots": func() (*Identity, error) { return Static(good, nil) },
		"its key and roots":                             func() (*Identity, error) { return Static(tls.Certificate{}, a.pool()) },
		"signed by unknown authority":                   func() (*Identity, error) { return Static(good, stranger.pool()) },
		"certificate has expired":                       func() (*Identity, error) { return Static(a.pair(web, -time.Second), a.pool()) },
		"must be DER": func() (*Identity, error) {
			return Static(tls.Certificate{Certificate: [][]byte{{1}}, PrivateKey: good.PrivateKey}, a.pool())
		},
		"has no name": func() (*Identity, error) { return Static(a.pair("*.default", time.Hour), a.pool()) },
		"identity: the certificate is for another key": func() (*Identity, error) {
			return Static(tls.Certificate{Certificate: good.Certificate, PrivateKey: newKey(t)}, a.pool())
		},
		"identity: a []uint8 cannot sign": func() (*Identity, error) {
			return Static(tls.Certificate{Certificate: good.Certificate, PrivateKey: []byte("key")}, a.pool())
		},
	} {
		_, err := try()
		require.ErrorContains(t, err, want)
	}
	i, err := Static(good, a.pool())
	require.NoError(t, err)
	require.NoError(t, i.Ready(t.Context()))
	assert.Equal(t, web, i.Name())
	assert.Equal(t, web, i.ServerName())
	assert.Empty(t, a.static(spiffe).ServerName())
}
