package identity

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// Config is what an [Identity] is made of. [Load] reads one from files.
type Config struct {
	Name       string                 // its own: DNS-like, or a SPIFFE ID
	ServerName string                 // TLS server name that it answers to; Name, if that is DNS-like
	Roots      []byte                 // trust anchors: certificates, PEM
	Key        crypto.Signer          // ECDSA P-256, to be understood by linkerd's proxies; see Request
	CSR        []byte                 // certificate signing request for Name and Key, DER; see Request
	Token      func() ([]byte, error) // proof for the CA, asked for before each request; see TokenFile

	// A certificate is renewed after 70 % of the life that it has left, but no
	// sooner than MinRefresh, 10 s, and no later than MaxRefresh, 24 h.
	MinRefresh, MaxRefresh time.Duration

	Timeout     time.Duration // for the CA to answer; 10 s
	Backoff     layer.Backoff // after it did not, or not well; layer.DefaultBackoff
	Log         *slog.Logger  // nil for none
	Instruments Instruments
}

// Instruments are where an [Identity] writes. What is nil is not recorded.
type Instruments struct {
	Expiration metrics.Gauge   // when the certificate expires: seconds since 1970
	Refreshes  metrics.Counter // certificates got, the first one included
}

func (i Instruments) orDiscard() Instruments {
	if i.Expiration == nil {
		i.Expiration = discard.NewGauge()
	}
	if i.Refreshes == nil {
		i.Refreshes = discard.NewCounter()
	}
	return i
}

// withDefaults fills in what was not said.
func (c Config) withDefaults() Config {
	if c.ServerName == "" && caller.IsDNS(c.Name) {
		c.ServerName = c.Name
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&c.MinRefresh, 10 * time.Second}, {&c.MaxRefresh, 24 * time.Hour}, {&c.Timeout, 10 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	c.Backoff = c.Backoff.OrDefault()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Instruments = c.Instruments.orDiscard()
	return c
}

// check returns all that is wrong with c, which has its defaults.
func (c Config) check() error {
	errs := []error{caller.Check(c.Name), c.checkServerName(), c.checkRequest()}
	if c.Token == nil {
		errs = append(errs, errors.New("there is no Token to show to the CA"))
	}
	switch {
	case c.MinRefresh < 0 || c.Timeout < 0:
		errs = append(errs, errors.New("a time is less than 0"))
	case c.MaxRefresh < c.MinRefresh:
		errs = append(errs, fmt.Errorf("the latest refresh, %v, is before the soonest, %v", c.MaxRefresh, c.MinRefresh))
	}
	return errors.Join(errs...)
}

func (c Config) checkServerName() error {
	switch {
	case c.ServerName == "" && caller.IsURI(c.Name):
		return fmt.Errorf("no TLS server name goes with the identity %s: a URI needs one, such as web.default", c.Name)
	case c.ServerName != "" && !caller.IsDNS(c.ServerName):
		return fmt.Errorf("the TLS server name %q is no DNS name", c.ServerName)
	}
	return nil
}

// checkRequest finds out what the CA would otherwise, or worse, would not.
func (c Config) checkRequest() error {
	if c.Key == nil {
		return errors.New("there is no Key")
	}
	csr, err := x509.ParseCertificateRequest(c.CSR)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return fmt.Errorf("the certificate signing request: %w", err)
	}
	if !sameKey(csr.PublicKey, c.Key.Public()) {
		return errors.New("the certificate signing request is for another key")
	}
	if names := caller.Names(csr.Extensions); !has(names, c.Name) {
		return fmt.Errorf("the certificate signing request is for %s, not for %s", list(names), c.Name)
	}
	return nil
}

func sameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface {
		Equal(other crypto.PublicKey) bool
	})
	return ok && key.Equal(b)
}

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

// parseRoots reads trust anchors. Text between certificates is a comment, as
// other tools have it; a block that is not a certificate, or cut short, is a
// mistake: an anchor that was meant to be there would not be.
func parseRoots(data []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	n := 0
	for rest := data; ; n++ {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("block %d is a %s, not a CERTIFICATE", n+1, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		pool.AddCert(cert)
	}
	switch begun := bytes.Count(data, []byte("-----BEGIN")); {
	case n == 0:
		return nil, errors.New("there is no certificate in PEM")
	case begun > n:
		return nil, fmt.Errorf("of %d blocks of PEM %d cannot be read", begun, begun-n)
	}
	return pool, nil
}
