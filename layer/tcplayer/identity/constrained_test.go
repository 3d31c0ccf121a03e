package identity

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A CA that may sign for some names only signs for another, said to be made of
// parts: crypto/x509 passes over that, and we must not believe it.
func TestACertificateBeyondTheConstraintsOfItsCA(t *testing.T) {
	const other = "destination.team-b.example"
	sign := func(template *x509.Certificate, by *x509.Certificate, key, byKey any) *x509.Certificate {
		t.Helper()
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		if by == nil {
			by = template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, by, key, byKey)
		require.NoError(t, err)
		cert, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return cert
	}
	rootKey, teamKey, key := newKey(t), newKey(t), newKey(t)
	root := sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, rootKey.Public(), rootKey)
	team := sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "a"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"team-a.example"},
	}, root, teamKey.Public(), rootKey)
	roots := x509.NewCertPool()
	roots.AddCert(root)
	i := &Identity{roots: roots}

	for serial, name := range []asn1.RawValue{
		dns(other), {Class: asn1.ClassContextSpecific, Tag: 2, IsCompound: true, Bytes: []byte(other)},
	} {
		leaf := sign(&x509.Certificate{
			SerialNumber: big.NewInt(int64(3 + serial)), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			ExtraExtensions: []pkix.Extension{extension(t, name)},
		}, team, key.Public(), teamKey)
		require.Error(t, i.verifyPeer(other, []*x509.Certificate{leaf, team}))
	}
	mine := sign(&x509.Certificate{
		SerialNumber: big.NewInt(5), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		ExtraExtensions: []pkix.Extension{extension(t, dns("web.team-a.example"))},
	}, team, key.Public(), teamKey)
	require.NoError(t, i.verifyPeer("web.team-a.example", []*x509.Certificate{mine, team}))
}
