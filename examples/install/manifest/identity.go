package manifest

import (
	"crypto/tls"
	"errors"

	"github.com/gotower/gotower/examples/identity/ca"
)

// Identity has the certificates of the mesh in PEM: the trust anchors, and the issuer,
// which signs the certificates of proxies. It also has the private key of the issuer.
type Identity ca.Files

// NewIdentity generates a root certificate, which is the trust anchor, and an issuer for a
// trust domain. The key of the root is discarded.
func NewIdentity(domain string) (Identity, error) {
	f, err := ca.Generate(domain)
	return Identity(f), err
}

// check returns an error unless the certificate authority can use the identity: the issuer is a CA
// certificate with its key, and the trust anchors verify it.
func (i Identity) check() error {
	if _, err := tls.X509KeyPair(i.Issuer, i.Key); err != nil {
		return errors.New("the issuer and its key must be a certificate and its key in PEM") // the error may have parts of the key
	}
	return ca.Empty("").Replace(i.Anchors, i.Issuer, i.Key)
}
