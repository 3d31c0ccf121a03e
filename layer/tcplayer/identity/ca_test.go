package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/go-kit/kit/metrics"
	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer/layertest"
)

const (
	web    = "web.default.serviceaccount.identity.linkerd.cluster.local"
	other  = "other.default.serviceaccount.identity.linkerd.cluster.local"
	spiffe = "spiffe://cluster.local/ns/default/sa/web"
)

// authority is a root, and an issuer that it vouches for.
type authority struct {
	t            testing.TB
	root, issuer *x509.Certificate
	key          crypto.Signer
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// ca returns the template of a CA certificate.
func ca(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour),
	}
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	return newAuthorityUntil(t, ca("issuer").NotAfter)
}

// newAuthorityUntil returns an authority with an issuer that expires at end.
func newAuthorityUntil(t testing.TB, end time.Time) *authority {
	t.Helper()
	rootKey, a := newKey(t), &authority{t: t, key: newKey(t)}
	a.root = sign(t, ca("root"), ca("root"), rootKey.Public(), rootKey)
	issuer := ca("issuer")
	issuer.NotAfter = end
	a.issuer = sign(t, issuer, a.root, a.key.Public(), rootKey)
	return a
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.root)
	return pool
}

// leaf is a certificate as linkerd's CA makes it, but for what edits change.
func (a *authority) leaf(public crypto.PublicKey, name string, life time.Duration, edits ...func(*x509.Certificate)) *x509.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if caller.IsURI(name) {
		u, err := url.Parse(name)
		require.NoError(a.t, err)
		template.URIs = []*url.URL{u}
	} else {
		template.DNSNames = []string{name}
	}
	for _, edit := range edits {
		edit(template)
	}
	return sign(a.t, template, a.issuer, public, a.key)
}

// pair is a certificate with its key and chain, for name.
func (a *authority) pair(name string, life time.Duration, edits ...func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	key := newKey(a.t)
	leaf := a.leaf(key.Public(), name, life, edits...)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, a.issuer.Raw}, PrivateKey: key, Leaf: leaf}
}

// static is an identity that needs no CA.
func (a *authority) static(name string) *Identity {
	a.t.Helper()
	i, err := Static(a.pair(name, time.Hour), a.pool())
	require.NoError(a.t, err)
	return i
}

// answer certifies the request.
func (a *authority) answer(req *pb.CertifyRequest, life time.Duration) *pb.CertifyResponse {
	csr, err := x509.ParseCertificateRequest(req.GetCertificateSigningRequest())
	require.NoError(a.t, err)
	leaf := a.leaf(csr.PublicKey, req.GetIdentity(), life)
	return &pb.CertifyResponse{
		LeafCertificate: leaf.Raw, IntermediateCertificates: [][]byte{a.issuer.Raw}, ValidUntil: timestamppb.New(leaf.NotAfter),
	}
}

// config is one for name that trusts a.
func (a *authority) config(name string) Config {
	a.t.Helper()
	key, csr, err := Request(name)
	require.NoError(a.t, err)
	c := Config{Name: name, Roots: a.pem(), Key: key, CSR: csr, Token: func() ([]byte, error) { return []byte("token"), nil }}
	if caller.IsURI(name) {
		c.ServerName = "web.default"
	}
	return c
}

// answers is a CA in a function.
type answers func(context.Context, *pb.CertifyRequest) (*pb.CertifyResponse, error)

type caServer struct {
	pb.UnimplementedIdentityServer

	answers answers
}

func (s caServer) Certify(ctx context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
	return s.answers(ctx, req)
}

// serveCA serves gRPC in memory, so that it works in a bubble, until stop.
func serveCA(t testing.TB, how answers) (conn *grpc.ClientConn, stop func()) {
	t.Helper()
	var n layertest.Network
	l, err := n.Listen("tcp", "10.0.0.1:8080")
	require.NoError(t, err)
	server := grpc.NewServer()
	pb.RegisterIdentityServer(server, caServer{answers: how})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err = grpc.NewClient("passthrough:///10.0.0.1:8080", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.DialContext(ctx, "tcp", addr) }))
	require.NoError(t, err)
	return conn, func() {
		require.NoError(t, conn.Close())
		server.Stop()
		require.NoError(t, <-served)
	}
}

// certifying runs Certify until stop.
func certifying(t testing.TB, i *Identity, conn grpc.ClientConnInterface) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx, conn) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// number is what an instrument of a test shows.
type number struct {
	mu sync.Mutex
	n  float64
}

func (n *number) Set(v float64) { n.mu.Lock(); defer n.mu.Unlock(); n.n = v }
func (n *number) Add(v float64) { n.mu.Lock(); defer n.mu.Unlock(); n.n += v }

func (n *number) value() float64 { n.mu.Lock(); defer n.mu.Unlock(); return n.n }

type (
	asGauge   struct{ *number }
	asCounter struct{ *number }
)

func (g asGauge) With(...string) metrics.Gauge     { return g }
func (c asCounter) With(...string) metrics.Counter { return c }
