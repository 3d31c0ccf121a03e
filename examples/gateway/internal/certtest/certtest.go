// Package certtest makes certificates for tests.
package certtest

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
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Cert is a certificate with its key, and the authority that issued it.
type Cert struct {
	CA, Chain, Key []byte // in PEM
}

// New returns a certificate for names, which are DNS names and IP addresses, issued by a new
// certificate authority.
func New(t *testing.T, names ...string) Cert {
	t.Helper()
	// The authority has its own key, and signs itself.
	caKey := key(t)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	leafKey := key(t)
	leaf := &x509.Certificate{
		// A random serial number keeps certificates apart that programs remember.
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), caKey)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	require.NoError(t, err)
	return Cert{block("CERTIFICATE", caDER), block("CERTIFICATE", der), block("PRIVATE KEY", keyDER)}
}

// key returns a new private key.
func key(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return k
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Write writes the certificate chain to base.crt, the key to base.key, and the authority's
// certificate to the file ca, unless ca is "".
func (c Cert) Write(t *testing.T, base, ca string) {
	t.Helper()
	for name, data := range map[string][]byte{base + ".crt": c.Chain, base + ".key": c.Key, ca: c.CA} {
		if name != "" {
			require.NoError(t, os.WriteFile(name, data, 0o600))
		}
	}
}

// TLS returns the certificate and its key for a server or a client.
func (c Cert) TLS(t *testing.T) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(c.Chain, c.Key)
	require.NoError(t, err)
	return pair
}

// Pool returns a pool with the authority's certificate.
func (c Cert) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.CA)
	return pool
}
