// Package callertest creates client certificates for tests.
package callertest

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/caller"
)

// Certificate returns an unsigned certificate with the given DNS names and URIs, in the
// given order.
func Certificate(t testing.TB, names ...string) *x509.Certificate {
	t.Helper()
	const dns, uri = 2, 6 // RFC 5280, section 4.2.1.6
	var values []asn1.RawValue
	for _, name := range names {
		kind := dns
		if caller.IsURI(name) {
			kind = uri
		}
		values = append(values, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: kind, Bytes: []byte(name)})
	}
	der, err := asn1.Marshal(values)
	require.NoError(t, err)
	return &x509.Certificate{Extensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der}}}
}
