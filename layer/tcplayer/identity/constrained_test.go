package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"testing"

	"github.com/stretchr/testify/require"
)

// A CA with name constraints signs for a name outside them that is encoded in parts.
// crypto/x509 ignores such a name, and the verification must not accept it.
func TestVerifyNameConstraints(t *testing.T) {
	const other = "destination.team-b.example"
	rootKey, teamKey, key := newKey(t), newKey(t), newKey(t)
	root := sign(t, ca("root"), ca("root"), rootKey.Public(), rootKey)
	template := ca("a")
	template.PermittedDNSDomainsCritical, template.PermittedDNSDomains = true, []string{"team-a.example"}
	team := sign(t, template, root, teamKey.Public(), rootKey)
	roots := x509.NewCertPool()
	roots.AddCert(root)
	i := &Identity{roots: roots}
	verify := func(expected string, name asn1.RawValue) error {
		leaf := sign(t, &x509.Certificate{
			NotBefore: root.NotBefore, NotAfter: root.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			ExtraExtensions: []pkix.Extension{extension(t, name)},
		}, team, key.Public(), teamKey)
		return i.verifyPeer(expected, []*x509.Certificate{leaf, team})
	}

	require.Error(t, verify(other, dns(other)))
	require.Error(t, verify(other, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 2, IsCompound: true, Bytes: []byte(other)}))
	require.NoError(t, verify("web.team-a.example", dns("web.team-a.example")))
}
