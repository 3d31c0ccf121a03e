package manifest

import (
	"crypto/tls"
	"errors"

	"github.com/gotower/gotower/examples/identity/ca"
)

// Identity holds the mesh's certificates in PEM: the trust anchors, and the issuer, which signs
// the proxies' certificates, with its private key.
type Identity ca.Files

// NewIdentity generates a root certificate, which is the trust anchor, and an issuer for a trust
// domain. The root's key is discarded.
func NewIdentity(domain string) (Identity, error) {
	f, err := ca.Generate(domain)
	return Identity(f), err
}

// check returns an error unless the certificate authority can use the identity: the issuer is a CA
// certificate with its key, and the trust anchors verify it.
func (i Identity) check() error {
	if _, err := tls.X509KeyPair(i.Issuer, i.Key); err != nil {
		return errors.New("the issuer and its key must be a certificate and its key in PEM") // the error may quote the key
	}
	return ca.Empty("").Replace(i.Anchors, i.Issuer, i.Key)
}
