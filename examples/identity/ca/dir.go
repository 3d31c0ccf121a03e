package ca

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// AnchorsFile is the name of the file with the root's certificate.
const AnchorsFile = "trust-anchors.pem"

const (
	issuerFile = "issuer.pem"
	keyFile    = "issuer.key"
)

// Open reads an Authority from the files trust-anchors.pem, issuer.pem and issuer.key of
// dir. If none of them exists it creates dir and a new Authority.
func Open(dir, domain string) (*Authority, error) {
	missing := 0
	for _, name := range []string{AnchorsFile, issuerFile, keyFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			missing++
		}
	}
	switch missing {
	case 0:
		return read(dir, domain)
	case 3:
		return create(dir, domain)
	}
	return nil, fmt.Errorf("ca: %s has only some of %s, %s and %s: restore the missing files, or remove the others",
		dir, AnchorsFile, issuerFile, keyFile)
}

func create(dir, domain string) (*Authority, error) {
	a, err := New(domain)
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	for name, data := range map[string][]byte{AnchorsFile: a.anchors, issuerFile: encode(a.issuer), keyFile: encodeKey(key)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	return a, nil
}

func read(dir, domain string) (*Authority, error) {
	anchors, err := os.ReadFile(filepath.Join(dir, AnchorsFile))
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, issuerFile), filepath.Join(dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("ca: the issuer in %s: %w", dir, err)
	}
	a := &Authority{Lifetime: defaultLifetime, domain: domain, anchors: anchors, issuer: pair.Leaf}
	a.key, err = signer(pair.PrivateKey)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(anchors)
	if _, err := a.issuer.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, fmt.Errorf("ca: the issuer in %s (use a new directory for a new issuer): %w", dir, err)
	}
	return a, nil
}
