package manifest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

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

// check returns an error unless the issuer is a CA certificate with its key, and the trust
// anchors verify it. domain is the trust domain for the text of the error.
func (i Identity) check(domain string) error {
	pair, err := tls.X509KeyPair(i.Issuer, i.Key)
	if err != nil {
		return errors.New("the issuer and its key must be a certificate and its key in PEM") // the error may have parts of the key
	}
	if !pair.Leaf.IsCA {
		return fmt.Errorf("the issuer %s must be a CA certificate", pair.Leaf.Subject)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(i.Anchors) {
		return errors.New("the trust anchors must be certificates in PEM")
	}
	intermediates := x509.NewCertPool()
	intermediates.AppendCertsFromPEM(i.Issuer)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("the trust anchors do not verify the issuer of %s: %w", domain, err)
	}
	return nil
}
