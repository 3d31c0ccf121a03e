package identity

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gotower/gotower/internal/caller"
)

// Load makes a [Config] of what linkerd's proxy is given:
//
//   - dir has key.p8, a private key (PKCS#8, DER), and csr.der, the certificate
//     signing request for it and for name (DER); [Generate] makes both
//   - anchors are the trust anchors: PEM itself, as in
//     LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS, if a certificate begins in it, and
//     else the name of a file of PEM
//   - tokenFile is a file that proves to the CA who this is; it is read again for
//     each request, and now, to see that it can be
//   - name is the identity; serverName the TLS server name, or "" for name
//
// The error has all that is wrong, a line for each, with the file that it is
// about.
func Load(dir, anchors, tokenFile, name, serverName string) (Config, error) {
	c := Config{Name: name, ServerName: serverName, Token: TokenFile(tokenFile)}
	_, err := c.Token()
	errs := []error{err}
	c.Roots, err = loadAnchors(anchors)
	errs = append(errs, err)
	c.Key, err = loadKey(filepath.Join(dir, keyFile))
	errs = append(errs, err)
	path := filepath.Join(dir, csrFile)
	if c.CSR, err = readFile(path); err != nil {
		errs = append(errs, fmt.Errorf("identity: %w: identity.Generate makes it", err))
	}
	full := c.withDefaults()
	errs = append(errs, prefix("identity", caller.Check(name)), prefix("identity", full.checkServerName()))
	if c.Key != nil && c.CSR != nil {
		errs = append(errs, prefix("identity: "+path, full.checkRequest()))
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// TokenFile reads a token from a file, each time that it is called. A file with
// nothing in it is an error.
func TokenFile(path string) func() ([]byte, error) {
	return func() ([]byte, error) {
		token, err := readFile(path)
		switch {
		case err != nil:
			return nil, fmt.Errorf("identity: the token for the CA: %w", err)
		case len(token) == 0:
			return nil, fmt.Errorf("identity: the token for the CA: %s is empty", path)
		}
		return token, nil
	}
}

func loadAnchors(anchors string) ([]byte, error) {
	if strings.Contains(anchors, "-----BEGIN") {
		_, err := parseRoots([]byte(anchors))
		return []byte(anchors), prefix("identity: trust anchors", err)
	}
	pem, err := readFile(anchors)
	if err != nil {
		return nil, fmt.Errorf("identity: trust anchors, which are neither PEM nor a file of it: %w", err)
	}
	_, err = parseRoots(pem)
	return pem, prefix("identity: trust anchors: "+anchors, err)
}

func loadKey(path string) (crypto.Signer, error) {
	der, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("identity: %w: identity.Generate makes it", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("identity: %s must be a PKCS#8 private key in DER, as identity.Generate makes it: %w", path, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("identity: %s: a %T cannot sign", path, parsed)
	}
	return key, nil
}

// readFile reads what the process was told to read.
func readFile(path string) ([]byte, error) {
	return os.ReadFile(path) //nolint:gosec // the configuration names it, not a peer
}

// prefix says where an error was.
func prefix(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}
