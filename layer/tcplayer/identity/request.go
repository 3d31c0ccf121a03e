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

// Names of the files that Generate writes.
const (
	keyFile = "key.p8"  // private key: PKCS#8, DER
	csrFile = "csr.der" // certificate signing request, DER
)

// Request generates an ECDSA P-256 key and a certificate signing request (DER) for name.
// They are the values of Key and CSR in a [Config].
func Request(name string) (key crypto.Signer, csr []byte, err error) {
	if err := caller.Check(name); err != nil {
		return nil, nil, fmt.Errorf("identity: %w", err)
	}
	template := &x509.CertificateRequest{DNSNames: []string{name}}
	// A SPIFFE ID is a URI, any other name a DNS name.
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

// Generate writes a new private key to key.p8 and its certificate signing request for name
// to csr.der, both in the directory dir. [Load] reads them. linkerd's proxy-identity writes
// the same files. The directory must exist, and should be on a file system in memory. Only
// the owner can read the files. Existing files are replaced.
func Generate(dir, name string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("identity: the directory for the key must exist: %w", err)
	case !info.IsDir():
		return fmt.Errorf("identity: %s must be a directory", dir)
	}
	key, csr, err := Request(name)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	// If the second write fails, Load rejects the pair.
	return errors.Join(replace(filepath.Join(dir, keyFile), der), replace(filepath.Join(dir, csrFile), csr))
}

// replace writes data to a new file that only the owner can read. It first removes an existing
// file, which could be readable by others.
func replace(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("identity: %w", err)
	}
	// O_EXCL fails if another process made a file or link in the meantime.
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
