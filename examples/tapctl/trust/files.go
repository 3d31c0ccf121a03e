package trust

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Files holds the paths of PEM files. The files are read again for each connection.
type Files struct {
	Anchors string // trust anchors; "" means those of the system
	Cert    string // the client certificate and its chain; "" means no certificate
	Key     string // the key of Cert; "" if it is in the same file
}

// Server specifies what the server must prove by its certificate: Identity, or Name if Identity is
// empty.
type Server struct {
	Name     string // TLS server name (SNI): a DNS name, or an IP address, which is not sent
	Identity string // required identity: DNS-like, or a SPIFFE ID; or ""
}

// proof holds what is in the Files, read for one connection.
type proof struct {
	verifier *identity.Identity // verifies Server.Identity; nil if Identity is ""
	roots    *x509.CertPool     // nil means those of the system
	cert     *tls.Certificate   // nil means no certificate
}

// Check returns an [Error] if s has an identity and f has no Anchors, or if f has a Key and no
// Cert. It does not read the files.
func (f Files) Check(s Server) error {
	// Without anchors, anybody could claim an identity.
	switch {
	case s.Identity != "" && f.Anchors == "":
		return &Error{Reason: "verification of a server identity needs trust anchors", Advice: adviceUnknown}
	case f.Key != "" && f.Cert == "":
		return &Error{Reason: "a key without a certificate", Advice: adviceCert}
	}
	return nil
}

// read reads the files for a connection to s. If one is invalid, the error's advice names its
// tapctl flag, such as --cert.
func (f Files) read(s Server) (*proof, error) {
	p := new(proof)
	if err := p.readAnchors(f.Anchors, s); err != nil {
		return nil, err
	}
	if f.Cert == "" {
		return p, nil
	}
	// Certificate and key may be in the same file.
	return p, p.readCert(f.Cert, cmp.Or(f.Key, f.Cert))
}

// readAnchors reads the trust anchors in the file at path, and stores in p what they verify: the identity
// of s if it has one (p.verifier), and otherwise its name (p.roots). If path is "", p stays as it is, so
// that crypto/tls verifies the name of s by the system's anchors.
func (p *proof) readAnchors(path string, s Server) error {
	if path == "" {
		return nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return &Error{Reason: fmt.Sprintf("trust anchors: %v", err), Advice: adviceAnchors, Err: err}
	}
	// An identity without a certificate can verify others. It rejects more invalid
	// anchors than crypto/x509 does.
	name := cmp.Or(s.Identity, "tapctl")
	key, csr, err := identity.Request(name)
	if err != nil {
		return &Error{Reason: withoutPrefix(err), Advice: adviceIdentity, Err: err}
	}
	verifier, err := identity.New(identity.Config{
		Name: name, ServerName: "tapctl", Roots: pem, Key: key, CSR: csr,
		Token: func() ([]byte, error) { return nil, errors.New("none is asked for") },
	})
	if err != nil {
		return &Error{Reason: fmt.Sprintf("trust anchors: %s: %s", path, withoutPrefix(err)), Advice: adviceAnchors, Err: err}
	}
	// Without an identity, the server's name is verified by crypto/tls.
	if s.Identity != "" {
		p.verifier = verifier
	}
	p.roots = x509.NewCertPool()
	p.roots.AppendCertsFromPEM(pem)
	return nil
}

// readCert reads the client certificate and its key, which may be in the same file.
func (p *proof) readCert(path, keyPath string) error {
	// wrong returns err with the files that it is about.
	wrong := func(err error) error {
		location := path
		if keyPath != path && !errors.Is(err, os.ErrNotExist) {
			location += ", with the key " + keyPath
		}
		return &Error{Reason: fmt.Sprintf("client certificate %s: %v", location, err), Advice: adviceCert, Err: err}
	}
	pair, err := readPair(path, keyPath)
	if err != nil {
		// A renewal may have replaced one of the two files between the reads.
		pair, err = readPair(path, keyPath)
	}
	if err != nil {
		return wrong(err)
	}
	// An expired certificate would only be rejected by the server, without a reason.
	if err := current(pair.Leaf); err != nil {
		return &Error{Reason: fmt.Sprintf("client certificate %s: %v", path, err), Advice: adviceRenewOwn(now()), Err: err}
	}
	p.cert = &pair
	return nil
}

func readPair(path, keyPath string) (tls.Certificate, error) {
	cert, err := os.ReadFile(path)
	if err != nil {
		return tls.Certificate{}, err
	}
	key := cert
	if keyPath != path {
		if key, err = os.ReadFile(keyPath); err != nil {
			return tls.Certificate{}, err
		}
	}
	return tls.X509KeyPair(cert, key)
}

// current returns an error if the certificate c has expired or is not valid yet.
func current(c *x509.Certificate) error {
	switch t := time.Now(); {
	case t.After(c.NotAfter):
		return fmt.Errorf("it expired at %s", clock(c.NotAfter))
	case t.Before(c.NotBefore):
		return fmt.Errorf("it is valid from %s on", clock(c.NotBefore))
	}
	return nil
}

// now returns the current time in the form of clock.
func now() string { return clock(time.Now()) }

// clock returns t in UTC, as messages show it.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// withoutPrefix returns the text of err, without the prefixes that package identity adds to
// its errors.
func withoutPrefix(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "identity: "), "trust anchors: ")
}
