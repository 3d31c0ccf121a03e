package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/gotower/gotower/internal/caller"
)

// The files of a directory made by [Generate].
const (
	keyFile = "key.p8"  // private key: PKCS#8, DER
	csrFile = "csr.der" // certificate signing request, DER
)

// Request makes a key, ECDSA P-256, and the request for a certificate of it for
// name, DER: what [Config] has as Key and CSR.
func Request(name string) (key crypto.Signer, csr []byte, err error) {
	if err := caller.Check(name); err != nil {
		return nil, nil, fmt.Errorf("identity: %w", err)
	}
	template := &x509.CertificateRequest{DNSNames: []string{name}}
	if caller.IsURI(name) {
		u, err := url.Parse(name)
		if err != nil {
			return nil, nil, fmt.Errorf("identity: %w", err)
		}
		template = &x509.CertificateRequest{URIs: []*url.URL{u}}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("identity: %w", err)
	}
	csr, err = x509.CreateCertificateRequest(rand.Reader, template, private)
	if err != nil {
		return nil, nil, fmt.Errorf("identity: %w", err)
	}
	return private, csr, nil
}

// Generate writes key.p8 and csr.der for name into dir, for [Load], as linkerd's
// proxy-identity does: before the proxy starts, into a directory that is there
// already and is best one in memory. Only the owner may read them. Files that
// are there are replaced.
func Generate(dir, name string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("identity: the directory for the key must be there: %w", err)
	case !info.IsDir():
		return fmt.Errorf("identity: %s is no directory", dir)
	}
	key, csr, err := Request(name)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	// A key without its request, should the second fail, is found out by Load.
	return errors.Join(replace(filepath.Join(dir, keyFile), der), replace(filepath.Join(dir, csrFile), csr))
}

// replace leaves nothing of a file that was there, such as who could read it.
func replace(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("identity: %w", err)
	}
	// It must be new: what somebody else put there meanwhile, a link say, is
	// neither followed nor written to.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the caller names it
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}
