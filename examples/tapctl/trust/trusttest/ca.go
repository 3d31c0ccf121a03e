// Package trusttest issues certificates for tests and writes them to files.
package trusttest

import (
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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// CA is a certificate authority for tests, either a root or an intermediate.
type CA struct {
	Pool *x509.CertPool
	File string // PEM file with the certificate of the CA

	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	shown [][]byte // CA certificates that follow an issued certificate in its chain
}

// New returns a new root CA. It writes the certificate of the CA to a temporary file, and
// stores the path in the field File.
func New(t testing.TB) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	// A root signs its own certificate.
	template := valid(&x509.Certificate{
		Subject: pkix.Name{CommonName: "the authority of a test"},
		IsCA:    true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	ca := &CA{Pool: x509.NewCertPool(), File: filepath.Join(t.TempDir(), "ca.pem"), cert: cert, key: key}
	ca.Pool.AddCert(cert)
	require.NoError(t, os.WriteFile(ca.File, encode("CERTIFICATE", der), 0o600))
	return ca
}

// valid makes the certificate c valid from an hour ago to an hour from now, and sets a
// new serial number. It returns c.
func valid(c *x509.Certificate) *x509.Certificate {
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore = time.Now().Add(-time.Hour)
	c.NotAfter = time.Now().Add(time.Hour)
	return c
}

// Issue returns a certificate for servers and clients with the given names. A name is a
// DNS name, an IP address or a URI.
func (ca *CA) Issue(t testing.TB, names ...string) tls.Certificate {
	t.Helper()
	return ca.issue(t, valid(&x509.Certificate{}), names)
}

// ForClients returns a certificate like [CA.Issue], but only for clients.
func (ca *CA) ForClients(t testing.TB, names ...string) tls.Certificate {
	t.Helper()
	return ca.issue(t, valid(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}), names)
}

// Below returns a new intermediate CA whose certificate is issued by ca, with template's fields.
// The new CA adds this certificate to the chains that it issues.
func (ca *CA) Below(t testing.TB, template *x509.Certificate) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template.Subject = pkix.Name{CommonName: "an authority below that of a test"}
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, valid(template), ca.cert, &key.PublicKey, ca.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	// Servers have to send this CA's certificate together with those that it issues.
	return &CA{Pool: ca.Pool, File: ca.File, cert: cert, key: key, shown: append([][]byte{der}, ca.shown...)}
}

// Expired returns a certificate like [CA.Issue], but the certificate expired an hour ago.
func (ca *CA) Expired(t testing.TB, names ...string) tls.Certificate {
	t.Helper()
	c := valid(&x509.Certificate{})
	// The validity ends when that of other certificates begins.
	c.NotAfter = c.NotBefore
	c.NotBefore = c.NotBefore.Add(-time.Hour)
	return ca.issue(t, c, names)
}

// issue completes c with names and a key, and signs it.
func (ca *CA) issue(t testing.TB, c *x509.Certificate, names []string) tls.Certificate {
	t.Helper()
	for _, name := range names {
		// The form of a name tells its kind.
		ip := net.ParseIP(name)
		switch {
		case ip != nil:
			c.IPAddresses = append(c.IPAddresses, ip)
		case strings.Contains(name, "://"):
			uri, err := url.Parse(name)
			require.NoError(t, err)
			c.URIs = append(c.URIs, uri)
		default:
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	if c.ExtKeyUsage == nil {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, c, ca.cert, &key.PublicKey, ca.key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: append([][]byte{der}, ca.shown...), PrivateKey: key, Leaf: leaf}
}

// Write writes the certificates of cert to certFile and the key to keyFile. Both may be
// the same file. Write replaces existing files atomically, as a renewal does.
func Write(t testing.TB, certFile, keyFile string, cert tls.Certificate) {
	t.Helper()
	var certs []byte
	for _, der := range cert.Certificate {
		certs = append(certs, encode("CERTIFICATE", der)...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(t, err)
	key := encode("PRIVATE KEY", der)
	// A file with both is replaced in one step.
	if certFile == keyFile {
		certs = append(certs, key...)
	} else {
		replace(t, keyFile, key)
	}
	// The key comes first, as a renewal usually writes it.
	replace(t, certFile, certs)
}

// replace replaces a file at once, so that no reader sees a part of it.
func replace(t testing.TB, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", data, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
