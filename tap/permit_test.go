package tap

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// afar makes every caller seem to come from addr.
func afar(addr string) func(net.Listener) net.Listener {
	return func(l net.Listener) net.Listener {
		return farListener{l, net.TCPAddrFromAddrPort(mustAddr(addr))}
	}
}

type farListener struct {
	net.Listener
	from net.Addr
}

func (l farListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return farConn{c, l.from}, nil
}

type farConn struct {
	net.Conn
	from net.Addr
}

func (c farConn) RemoteAddr() net.Addr { return c.from }

// authority signs certificates.
type certAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *certAuthority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	ca := &certAuthority{cert, key, x509.NewCertPool()}
	ca.pool.AddCert(cert)
	return ca
}

func (ca *certAuthority) issue(t *testing.T, change func(*x509.Certificate)) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	change(tmpl)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, &key.PublicKey, ca.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func dnsName(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.DNSNames = names }
}

const tapIdentity = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local"

// Which clients may watch.
func TestPermitClients(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	spiffe, err := url.Parse("spiffe://cluster.local/ns/viz/sa/Tap")
	require.NoError(t, err)
	mtls := credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, dnsName("proxy"))},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: ca.pool, MinVersion: tls.VersionTLS13,
	})
	unverified := credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, dnsName("proxy"))},
		ClientAuth:   tls.RequestClientCert, MinVersion: tls.VersionTLS13,
	})
	with := func(certs ...tls.Certificate) credentials.TransportCredentials {
		return credentials.NewTLS(&tls.Config{RootCAs: ca.pool, Certificates: certs, MinVersion: tls.VersionTLS13})
	}
	plaintext := insecure.NewCredentials()
	const remote = "192.0.2.1:5000"
	ids := []ServerOption{WithAllowedIdentities(tapIdentity, spiffe.String())}
	tests := []struct {
		name   string
		opts   []ServerOption
		from   string // "" is 127.0.0.1
		server credentials.TransportCredentials
		client credentials.TransportCredentials
		want   codes.Code
	}{
		{"default/loopback", nil, "", plaintext, plaintext, codes.OK},
		{"default/loopback IPv6", nil, "[::1]:5000", plaintext, plaintext, codes.OK},
		{"default/loopback mapped", nil, "[::ffff:127.0.0.1]:5000", plaintext, plaintext, codes.OK},
		{"default/loopback with TLS", nil, "", mtls, with(), codes.OK},
		{"default/remote", nil, remote, plaintext, plaintext, codes.Unauthenticated},
		{"default/remote IPv6", nil, "[2001:db8::1]:5000", plaintext, plaintext, codes.Unauthenticated},
		{"default/remote with TLS and a name", nil, remote, mtls, with(ca.issue(t, dnsName(tapIdentity))), codes.Unauthenticated},
		{"WithAllowRemote/remote", []ServerOption{WithAllowRemote()}, remote, plaintext, plaintext, codes.OK},
		{"identities/loopback in clear", ids, "", plaintext, plaintext, codes.OK},
		{"identities/remote in clear", ids, remote, plaintext, plaintext, codes.Unauthenticated},
		{"identities/right name", ids, remote, mtls, with(ca.issue(t, dnsName("x", tapIdentity))), codes.OK},
		{"identities/right name in capitals", ids, remote, mtls, with(ca.issue(t, dnsName("TAP.linkerd-viz.serviceaccount.identity.linkerd.cluster.local"))), codes.OK},
		{"identities/right URI", ids, remote, mtls, with(ca.issue(t, func(c *x509.Certificate) { c.URIs = []*url.URL{spiffe} })), codes.OK},
		{"identities/URI in other case", ids, remote, mtls, with(ca.issue(t, func(c *x509.Certificate) {
			c.URIs = []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/viz/sa/tap"}}
		})), codes.Unauthenticated},
		{"identities/wrong name", ids, remote, mtls, with(ca.issue(t, dnsName("web"))), codes.Unauthenticated},
		{"identities/wrong name on loopback", ids, "", mtls, with(ca.issue(t, dnsName("web"))), codes.Unauthenticated},
		{"identities/longer name", ids, remote, mtls, with(ca.issue(t, dnsName("x."+tapIdentity))), codes.Unauthenticated},
		{"identities/wildcard is a name like others", ids, remote, mtls, with(ca.issue(t, dnsName("*.linkerd-viz.serviceaccount.identity.linkerd.cluster.local"))), codes.Unauthenticated},
		{"identities/name only in the subject", ids, remote, mtls, with(ca.issue(t, func(c *x509.Certificate) { c.Subject.CommonName = tapIdentity })), codes.Unauthenticated},
		{"identities/TLS without a certificate", ids, remote, mtls, with(), codes.Unauthenticated},
		{"identities/expired", ids, remote, mtls, with(ca.issue(t, func(c *x509.Certificate) {
			c.DNSNames, c.NotAfter = []string{tapIdentity}, time.Now().Add(-time.Minute)
		})), codes.Unavailable}, // no handshake
		{"identities/of another authority", ids, remote, mtls, with(other.issue(t, dnsName(tapIdentity))), codes.Unavailable},
		{"identities/never verified", ids, remote, unverified, with(other.issue(t, dnsName(tapIdentity))), codes.Unauthenticated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var wrap func(net.Listener) net.Listener
			if tt.from != "" {
				wrap = afar(tt.from)
			}
			p := listen(t, NewServer(new(Registry), tt.opts...), wrap, grpc.Creds(tt.server))
			conn := dial(t, p.conn.Target()[len("passthrough:///"):], grpc.WithTransportCredentials(tt.client))
			stream, err := pb.NewTapClient(conn).Observe(t.Context(), all(1))
			if err == nil {
				send(t, stand(p.reg, respond("x")), get("/before"))
				if tt.want == codes.OK {
					_, err = stream.Header()
					require.NoError(t, err)
					send(t, stand(p.reg, respond("x")), get("/"))
				}
				_, err = stream.Recv()
			}
			require.Equal(t, tt.want, status.Code(err), "%v", err)
			if tt.want == codes.Unauthenticated {
				require.Nil(t, p.reg.active.Load(), "nothing was looked at")
			}
		})
	}
}

// The client of a proxy on this machine may be elsewhere.
func TestPermitForwardedCalls(t *testing.T) {
	for _, tt := range []struct {
		opts []ServerOption
		want codes.Code
	}{{nil, codes.Unauthenticated}, {[]ServerOption{WithAllowedIdentities("ops")}, codes.Unauthenticated}, {[]ServerOption{WithAllowRemote()}, codes.OK}} {
		p := listen(t, NewServer(new(Registry), tt.opts...), nil)
		for _, name := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
			ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), name, ""))
			stream, err := pb.NewTapClient(p.conn).Observe(ctx, all(1))
			require.NoError(t, err)
			md, err := stream.Header()
			if md == nil {
				_, err = stream.Recv() // has the reason
			}
			require.Equal(t, tt.want, status.Code(err), name)
			cancel()
		}
	}
}

func TestPermitRejectionText(t *testing.T) {
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{Addr: net.TCPAddrFromAddrPort(mustAddr("192.0.2.1:5000"))})
	require.EqualError(t, new(access).permit(ctx), "tap: 192.0.2.1:5000 is not on this machine")
}

func TestPermitUnusualAddresses(t *testing.T) {
	permit := func(ctx context.Context) error { return new(access).permit(ctx) }
	with := func(a net.Addr) context.Context { return grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{Addr: a}) }
	require.Error(t, permit(t.Context()), "the client has no address")
	require.Error(t, permit(with(nil)))
	require.Error(t, permit(with(memory("127.0.0.1"))), "not an address")
	require.NoError(t, permit(with(memory("[::ffff:127.0.0.1]:1"))))
	require.Error(t, permit(with(memory("[::ffff:10.0.0.1]:1"))))
	require.NoError(t, permit(with(&net.UnixAddr{Name: "/run/tap.sock", Net: "unix"})), "a socket in the file system is on this machine")
}

type memory string

func (memory) Network() string  { return "mem" }
func (m memory) String() string { return string(m) }
