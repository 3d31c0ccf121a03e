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

// Config is the configuration of an [Identity]. [Load] reads it from files.
type Config struct {
	Name       string                 // name of the identity: a DNS-like name or a SPIFFE ID
	ServerName string                 // TLS server name; default: Name, if it is DNS-like
	Roots      []byte                 // trust anchors, PEM
	Key        crypto.Signer          // private key: ECDSA P-256 for linkerd's proxies; see Request
	CSR        []byte                 // certificate signing request for Name and Key, DER
	Token      func() ([]byte, error) // returns the token for a request to the CA; see TokenFile

	// MinRefresh and MaxRefresh limit the time between two renewals. The defaults are 10 s
	// and 24 h.
	MinRefresh, MaxRefresh time.Duration

	Timeout     time.Duration // limit of a request to the CA; default: 10 s
	Backoff     layer.Backoff // pause after a failed request; default: layer.DefaultBackoff
	Log         *slog.Logger  // nil means no log
	Instruments Instruments
}

// Instruments are the metrics of an [Identity]. If a metric has labels, bind their values by its method
// With first. A nil metric is not recorded.
type Instruments struct {
	Expiration metrics.Gauge   // time at which the certificate expires, in seconds since 1970
	Refreshed  metrics.Gauge   // time at which the certificate was received, in seconds since 1970
	Refreshes  metrics.Counter // number of received certificates
	Failures   metrics.Counter // number of requests for a certificate that failed
}

// orDiscard returns i with metrics that do nothing in place of nil.
func (i Instruments) orDiscard() Instruments {
	// Layers may then use every instrument without a check for nil.
	for _, g := range []*metrics.Gauge{&i.Expiration, &i.Refreshed} {
		if *g == nil {
			*g = discard.NewGauge()
		}
	}
	for _, c := range []*metrics.Counter{&i.Refreshes, &i.Failures} {
		if *c == nil {
			*c = discard.NewCounter()
		}
	}
	return i
}

// withDefaults returns c with the defaults in place of unset fields.
func (c Config) withDefaults() Config {
	if c.ServerName == "" && caller.IsDNS(c.Name) {
		c.ServerName = c.Name
	}
	// The three durations have the same rule: 0 means the default.
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

// check returns an error that joins all problems in c. It does not check Roots, because parseRoots
// does. The caller must set the defaults of c first.
func (c Config) check() error {
	// All mistakes are reported together.
	errs := []error{caller.Check(c.Name), c.checkServerName(), c.checkRequest()}
	if c.Token == nil {
		errs = append(errs, errors.New("no Token"))
	}
	switch {
	case c.MinRefresh < 0 || c.Timeout < 0:
		errs = append(errs, errors.New("MinRefresh and Timeout must not be negative"))
	case c.MaxRefresh < c.MinRefresh:
		errs = append(errs, fmt.Errorf("MaxRefresh %v must not be less than MinRefresh %v", c.MaxRefresh, c.MinRefresh))
	}
	return errors.Join(errs...)
}

// checkServerName returns an error if the TLS server name is missing or not a DNS name.
func (c Config) checkServerName() error {
	switch {
	case c.ServerName == "" && caller.IsURI(c.Name):
		return fmt.Errorf("identity %s is a URI and needs a TLS server name, such as web.default", c.Name)
	case c.ServerName != "" && !caller.IsDNS(c.ServerName):
		return fmt.Errorf("TLS server name %q must be a DNS name", c.ServerName)
	}
	return nil
}

// checkRequest returns an error if CSR is malformed, carries an invalid signature, or is not for
// Key and Name.
func (c Config) checkRequest() error {
	if c.Key == nil {
		return errors.New("no Key")
	}
	// The signature proves that the CSR was made with the key in it, which must be that of Key.
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
	if names := caller.Names(csr.Extensions); !containsName(names, c.Name) {
		return fmt.Errorf("the certificate signing request is for %s, not for %s", list(names), c.Name)
	}
	return nil
}

// sameKey reports whether a and b are the same public key.
func sameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface {
		Equal(other crypto.PublicKey) bool
	})
	return ok && key.Equal(b)
}

// Load returns a [Config] from the inputs of linkerd's proxy:
//
//   - dir is the directory of key.p8, a private key (PKCS#8, DER), and of csr.der, its certificate
//     signing request for name (DER). [Generate] writes both.
//   - anchors is the PEM text of the trust anchors, as in LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS,
//     or the name of a PEM file.
//   - tokenFile names a file with the token for the CA. It is read by Load and again
//     before each request.
//   - name is the name of the identity.
//   - serverName is the TLS server name. If it is "", name is the server name
//     and must be DNS-like.
//
// The error tells each problem in a line of its own, with the file name.
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
	// Problems of all files are collected, so that the operator can correct them at once.
	full := c.withDefaults()
	errs = append(errs, prefix("identity", caller.Check(name)), prefix("identity", full.checkServerName()))
	// Without one of them, their mismatch is no further problem.
	if c.Key != nil && c.CSR != nil {
		errs = append(errs, prefix("identity: "+path, full.checkRequest()))
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// TokenFile returns a function for Config.Token that reads the token from the file at path.
// The function returns an error for an empty file.
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

// loadAnchors returns the trust anchors in PEM. anchors is their text or the name of a file. The error
// tells also if they cannot be parsed.
func loadAnchors(anchors string) ([]byte, error) {
	// PEM text contains this line, and a file name does not.
	if strings.Contains(anchors, "-----BEGIN") {
		_, err := parseRoots([]byte(anchors))
		return []byte(anchors), prefix("identity: trust anchors", err)
	}
	pem, err := readFile(anchors)
	if err != nil {
		return nil, fmt.Errorf("identity: trust anchors must be PEM or a PEM file: %w", err)
	}
	_, err = parseRoots(pem)
	return pem, prefix("identity: trust anchors: "+anchors, err)
}

// loadKey reads the private key in the file at path.
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

// readFile reads the file at path.
func readFile(path string) ([]byte, error) {
	return os.ReadFile(path) //nolint:gosec // the configuration names it, not a peer
}

// prefix returns err with text before its message. It returns nil for a nil err.
func prefix(text string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", text, err)
}

// parseRoots parses trust anchors in PEM. Text between blocks is ignored. A truncated block
// or a block of another type is an error, because a trust anchor could be missing.
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
	// pem.Decode skips a block that it cannot parse, without an error.
	// n is the number of valid blocks.
	switch count := bytes.Count(data, []byte("-----BEGIN")); {
	case n == 0:
		return nil, errors.New("no PEM certificate found")
	case count > n:
		return nil, fmt.Errorf("%[2]d of %[1]d PEM blocks are invalid", count, count-n)
	}
	return pool, nil
}
