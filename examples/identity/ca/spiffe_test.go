package ca_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/identity/ca"
)

// certifying returns a function that requests a certificate for name and key, of an authority
// that certifies all names of a trust domain with one token.
func certifying(t *testing.T, domain string) func(t *testing.T, name string, key crypto.Signer) error {
	t.Helper()
	a, err := ca.New(domain)
	require.NoError(t, err)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("t"), 0o600))
	return func(t *testing.T, name string, key crypto.Signer) error {
		t.Helper()
		client, _ := serve(t, a, ca.TokenFile(token)) // a new one, because failures are limited
		template := &x509.CertificateRequest{DNSNames: []string{name}}
		if strings.Contains(name, "://") {
			u, err := url.Parse(name)
			require.NoError(t, err)
			template = &x509.CertificateRequest{URIs: []*url.URL{u}}
		}
		csr, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		require.NoError(t, err)
		_, err = client.Certify(t.Context(), &pb.CertifyRequest{Identity: name, Token: []byte("t"), CertificateSigningRequest: csr})
		return err
	}
}

// Names follow the SPIFFE-ID standard or the syntax of DNS, also with a token for all names.
func TestCertifiedNames(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	const domain = "spiffe://cluster.local"
	certify := certifying(t, "cluster.local")
	for name, problem := range map[string]string{
		spiffe:                   "",
		domain + "/a":            "",
		domain + "/A-b_c.9":      "",
		domain + "/a/.../..a/.b": "",
		domain + "/" + strings.Repeat("a", 2048-len(domain)-1): "",
		domain + "/" + strings.Repeat("a", 2048-len(domain)):   "it has 2049 bytes, at most 2048 are allowed",
		domain:                          "must have a path",
		domain + "/":                    `segment ""`,
		domain + "/a/":                  `segment ""`,
		domain + "//a":                  `segment ""`,
		domain + "/a//b":                `segment ""`,
		domain + "/../x":                `segment ".."`,
		domain + "/a/..":                `segment ".."`,
		domain + "/./x":                 `segment "."`,
		domain + "/a/%2e%2e/x":          `segment "%2e%2e"`,
		domain + "/a%2Fb":               `segment "a%2Fb"`,
		domain + "/a:b":                 `segment "a:b"`,
		domain + "/a@b":                 `segment "a@b"`,
		domain + "/a~b":                 `segment "a~b"`,
		domain + "/a?b":                 `segment "a?b"`,
		domain + "/a#b":                 `segment "a#b"`,
		domain + "?a":                   "must have a path",
		domain + ":80/a":                `trust domain "cluster.local:80"`,
		"spiffe://user@cluster.local/a": `trust domain "user@cluster.local"`,
		"spiffe://Cluster.local/a":      `trust domain "Cluster.local"`,
		"spiffe:///a":                   `trust domain ""`,
		"https://cluster.local/a":       "the scheme must be spiffe",
		"spiffe://elsewhere/a":          "does not belong to the trust domain",
		"spiffe://x.cluster.local/a":    "does not belong to the trust domain",
		web:                             "",
		"a..cluster.local":              "must be DNS-like",
		".cluster.local":                "must be DNS-like",
		"-a.cluster.local":              "must be DNS-like",
		strings.Repeat("a", 64) + ".cluster.local":    "must be DNS-like",
		strings.Repeat("a.", 120) + "b.cluster.local": "must be DNS-like",
	} {
		err := certify(t, name, key)
		if problem == "" {
			require.NoError(t, err, name)
			continue
		}
		assert.Equal(t, codes.FailedPrecondition, status.Code(err), name)
		assert.ErrorContains(t, err, problem, name)
	}
	long := strings.Repeat("a", 256)
	assert.ErrorContains(t, certifying(t, "")(t, "spiffe://"+long+"/a", key), "must have 1 to 255 bytes")
	for domain, valid := range map[string]bool{"cluster.local": true, "a_b-1": true, long[1:]: true, long: false, "": false, "A": false, "a/b": false, "a:1": false} {
		assert.Equal(t, valid, ca.CheckTrustDomain(domain) == nil, domain)
	}
}

func TestCertifiedKeys(t *testing.T) {
	certify := certifying(t, "cluster.local")
	rsaKey := func(bits int) crypto.Signer {
		t.Setenv("GODEBUG", "rsa1024min=0")
		key, err := rsa.GenerateKey(rand.Reader, bits)
		require.NoError(t, err)
		return key
	}
	curve := func(c elliptic.Curve) crypto.Signer {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		require.NoError(t, err)
		return key
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		key     crypto.Signer
		problem string
	}{
		"RSA 1024": {rsaKey(1024), "the RSA key has 1024 bits, must have 2048 to 8192"},
		"RSA 2047": {rsaKey(2047), "the RSA key has 2047 bits"},
		"RSA 2048": {rsaKey(2048), ""},
		"P-224":    {curve(elliptic.P224()), "curve P-224, must be on P-256, P-384 or P-521"},
		"P-256":    {curve(elliptic.P256()), ""},
		"P-384":    {curve(elliptic.P384()), ""},
		"Ed25519":  {edwards, ""},
	} {
		err := certify(t, spiffe, tt.key)
		if tt.problem == "" {
			require.NoError(t, err, name)
			continue
		}
		assert.Equal(t, codes.FailedPrecondition, status.Code(err), name)
		assert.ErrorContains(t, err, tt.problem, name)
	}
}
