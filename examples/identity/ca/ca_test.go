package ca_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

const (
	web    = "web.default.serviceaccount.identity.linkerd.cluster.local"
	spiffe = "spiffe://cluster.local/ns/default/sa/web"
)

// serve serves a over gRPC.
func serve(t *testing.T, a *ca.Authority, check ca.Check) (client pb.IdentityClient, conn *grpc.ClientConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	ca.Register(server, a, check)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err = grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		require.NoError(t, <-served)
	})
	return pb.NewIdentityClient(conn), conn
}

func roots(a *ca.Authority) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.TrustAnchors())
	return pool
}

func request(t *testing.T, template *x509.CertificateRequest) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	require.NoError(t, err)
	return der
}

func TestCertify(t *testing.T) {
	a, err := ca.New("cluster.local")
	require.NoError(t, err)
	a.Lifetime = time.Hour
	tokens := t.TempDir()
	for _, name := range []string{web, spiffe} {
		require.NoError(t, os.WriteFile(filepath.Join(tokens, ca.TokenName(name)), []byte("the token\n"), 0o600))
	}
	client, _ := serve(t, a, ca.TokenDir(tokens))
	for _, name := range []string{web, spiffe} {
		key, csr, err := identity.Request(name)
		require.NoError(t, err)
		rsp, err := client.Certify(t.Context(), &pb.CertifyRequest{Identity: name, Token: []byte("the token"), CertificateSigningRequest: csr})
		require.NoError(t, err)
		leaf, err := x509.ParseCertificate(rsp.GetLeafCertificate())
		require.NoError(t, err)
		assert.Equal(t, leaf.NotAfter, rsp.GetValidUntil().AsTime())
		assert.WithinDuration(t, time.Now().Add(time.Hour), leaf.NotAfter, 10*time.Minute)
		require.Len(t, rsp.GetIntermediateCertificates(), 1)
		issuer, err := x509.ParseCertificate(rsp.GetIntermediateCertificates()[0])
		require.NoError(t, err)
		others := x509.NewCertPool()
		others.AddCert(issuer)
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots(a), Intermediates: others})
		require.NoError(t, err)
		assert.True(t, leaf.PublicKey.(*ecdsa.PublicKey).Equal(key.Public()))
		assert.False(t, leaf.IsCA)
	}
}

// Each invalid request is rejected with an error and a code.
func TestCertifyRejects(t *testing.T) {
	a, err := ca.New("cluster.local")
	require.NoError(t, err)
	tokens := t.TempDir()
	write := func(name, token string) {
		require.NoError(t, os.WriteFile(filepath.Join(tokens, ca.TokenName(name)), []byte(token), 0o600))
	}
	write(web, "t")
	write("empty.cluster.local", " \n")
	write("web.elsewhere", "t")
	write("*.cluster.local", "t")
	write("spiffe://elsewhere/web", "t")
	require.NoError(t, os.Mkdir(filepath.Join(tokens, "dir.cluster.local"), 0o700))
	client, _ := serve(t, a, ca.TokenDir(tokens))
	dns := func(names ...string) []byte { return request(t, &x509.CertificateRequest{DNSNames: names}) }
	uri := func(name string) []byte {
		u, err := url.Parse(name)
		require.NoError(t, err)
		return request(t, &x509.CertificateRequest{URIs: []*url.URL{u}})
	}
	forged := bytes.Clone(dns(web))
	forged[len(forged)-1] ^= 1
	for want, tt := range map[string]struct {
		code  codes.Code
		name  string
		token string
		csr   []byte
	}{
		"the request must have an identity": {codes.InvalidArgument, "", "t", dns(web)},
		"the request must have a token":     {codes.InvalidArgument, web, "", dns(web)},
		"must be DER":                       {codes.InvalidArgument, web, "t", []byte("x")},
		"signed by its key":                 {codes.InvalidArgument, web, "t", forged},
		"the token does not match":          {codes.FailedPrecondition, web, "u", dns(web)},
		"no token is stored for it":         {codes.FailedPrecondition, "db.cluster.local", "t", dns("db.cluster.local")},
		"its stored token is empty":         {codes.FailedPrecondition, "empty.cluster.local", " ", dns("empty.cluster.local")},
		"its stored token cannot be read":   {codes.FailedPrecondition, "dir.cluster.local", "t", dns("dir.cluster.local")},
		`is for ["db.cluster.local"], must be for the requested identity`: {codes.FailedPrecondition, web, "t", dns("db.cluster.local")},
		`must be for the requested identity`:                              {codes.FailedPrecondition, web, "t", dns(web, "db.cluster.local")},
		`is for [], must`:                                                 {codes.FailedPrecondition, web, "t", request(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: web}})},
		`common name of the certificate`:                                  {codes.FailedPrecondition, web, "t", request(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{web}})},
		"must not contain addresses":                                      {codes.FailedPrecondition, web, "t", request(t, &x509.CertificateRequest{DNSNames: []string{web}, IPAddresses: []net.IP{{10, 0, 0, 1}}})},
		`"*.cluster.local" must be DNS-like`:                              {codes.FailedPrecondition, "*.cluster.local", "t", dns("*.cluster.local")},
		"not certified: the token does not match":                         {codes.FailedPrecondition, web, "u", forged}, // nothing is computed before the token is valid
		`"web.elsewhere" does not belong to the trust domain`:             {codes.FailedPrecondition, "web.elsewhere", "t", dns("web.elsewhere")},
		`"spiffe://elsewhere/web" does not belong to the`:                 {codes.FailedPrecondition, "spiffe://elsewhere/web", "t", uri("spiffe://elsewhere/web")},
		`"https://cluster.local/web" must be a SPIFFE ID: the scheme`:     {codes.FailedPrecondition, "https://cluster.local/web", "t", uri("https://cluster.local/web")},
		`segment ".." of the path`:                                        {codes.FailedPrecondition, "spiffe://cluster.local/../x", "t", uri("spiffe://cluster.local/../x")},
	} {
		_, err := client.Certify(t.Context(), &pb.CertifyRequest{Identity: tt.name, Token: []byte(tt.token), CertificateSigningRequest: tt.csr})
		assert.Equal(t, tt.code, status.Code(err), want)
		assert.ErrorContains(t, err, want)
	}
}

// A name cannot be made to lead out of the directory of tokens.
func TestTokenName(t *testing.T) {
	for name, file := range map[string]string{
		web: web, spiffe: "spiffe:%2F%2Fcluster.local%2Fns%2Fdefault%2Fsa%2Fweb", "../../etc/passwd.cluster.local": "..%2F..%2Fetc%2Fpasswd.cluster.local",
	} {
		assert.Equal(t, file, ca.TokenName(name))
	}
}

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "ca")
	first, err := ca.Open(dir, "cluster.local")
	require.NoError(t, err)
	second, err := ca.Open(dir, "cluster.local")
	require.NoError(t, err)
	assert.Equal(t, first.TrustAnchors(), second.TrustAnchors())
	for _, a := range []*ca.Authority{first, second} {
		key, _, err := identity.Request(web)
		require.NoError(t, err)
		chain, err := a.Issue(web, key.Public())
		require.NoError(t, err)
		others := x509.NewCertPool()
		others.AddCert(chain[1])
		_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots(first), Intermediates: others, DNSName: web})
		require.NoError(t, err)
	}
	for _, file := range []string{"trust-anchors.pem", "issuer.pem", "issuer.key"} {
		info, err := os.Stat(filepath.Join(dir, file))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode())
	}
	third := filepath.Join(t.TempDir(), "third")
	_, err = ca.Open(third, "cluster.local")
	require.NoError(t, err)
	anchors, err := os.ReadFile(filepath.Join(third, "trust-anchors.pem"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "trust-anchors.pem"), anchors, 0o600))
	_, err = ca.Open(dir, "cluster.local")
	require.ErrorContains(t, err, "(use a new directory for a new issuer): ca: the trust anchors do not verify the issuer: x509: certificate signed by unknown authority")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "issuer.key"), nil, 0o600))
	_, err = ca.Open(dir, "cluster.local")
	require.ErrorContains(t, err, "issuer.key in "+dir)
	require.NoError(t, os.Remove(filepath.Join(dir, "issuer.key")))
	_, err = ca.Open(dir, "cluster.local")
	require.ErrorContains(t, err, "restore the missing files, or remove the others")
}

// A client that may have any name may not have the name of the authority, because other
// clients send their tokens to this name.
func TestAuthorityOwnName(t *testing.T) {
	a, err := ca.New("cluster.local")
	require.NoError(t, err)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("t"), 0o600))
	const own = "identity.cluster.local"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ca.Serve(ctx, l, a, ca.TokenFile(token), own) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{RootCAs: roots(a), ServerName: own, MinVersion: tls.VersionTLS13})))
	require.NoError(t, err)
	client := pb.NewIdentityClient(conn)
	for name, code := range map[string]codes.Code{web: codes.OK, own: codes.FailedPrecondition, "IDENTITY.cluster.local": codes.FailedPrecondition} {
		_, csr, err := identity.Request(name)
		require.NoError(t, err)
		_, err = client.Certify(t.Context(), &pb.CertifyRequest{Identity: name, Token: []byte("t"), CertificateSigningRequest: csr},
			grpc.WaitForReady(true))
		require.Equal(t, code, status.Code(err), "%s: %v", name, err)
	}
	require.NoError(t, conn.Close())
	cancel()
	require.NoError(t, <-done)
}

// Issue accepts every kind of key of crypto/x509. A certificate expires no later than the
// issuer.
func TestIssue(t *testing.T) {
	a, err := ca.New("")
	require.NoError(t, err)
	a.Lifetime = 100 * 365 * 24 * time.Hour
	chain, err := a.Issue("anything", public(t))
	require.NoError(t, err)
	assert.Equal(t, chain[1].NotAfter, chain[0].NotAfter)
	_, err = a.Issue("://", public(t))
	require.ErrorContains(t, err, "missing protocol scheme")
	_, err = a.Issue("web", "no key")
	require.ErrorContains(t, err, "unsupported public key type")
}

func public(t *testing.T) crypto.PublicKey {
	t.Helper()
	key, _, err := identity.Request(web)
	require.NoError(t, err)
	return key.Public()
}

// Package identity gets its certificate from the authority, and reports the errors.
func TestWithIdentity(t *testing.T) {
	a, err := ca.New("cluster.local")
	require.NoError(t, err)
	token := filepath.Join(t.TempDir(), "token")
	_, conn := serve(t, a, ca.TokenFile(token))
	key, csr, err := identity.Request(web)
	require.NoError(t, err)
	result := make(chan error, 100)
	i, err := identity.New(identity.Config{
		Name: web, Roots: a.TrustAnchors(), Key: key, CSR: csr, Token: func() ([]byte, error) { return []byte("t"), nil },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { result <- i.Run(ctx, conn) }()
	gone, done := context.WithCancel(ctx)
	done()
	require.Eventually(t, func() bool {
		err := i.Ready(gone)
		return err != nil && strings.Contains(err.Error(), `"`+web+`" is not certified: no token is stored for it`)
	}, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, os.WriteFile(token, []byte("t"), 0o600))
	require.NoError(t, i.Ready(ctx))
	cancel()
	require.NoError(t, <-result)
}
