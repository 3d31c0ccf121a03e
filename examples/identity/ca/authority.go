package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/url"
	"time"
)

// Authority issues certificates. It is safe for concurrent use.
type Authority struct {
	// Lifetime is the validity of a certificate. The default is a day, as linkerd's.
	// It should be at least 20 s, because proxies wait for at least 10 s before they
	// renew. It must not change while the Authority is in use.
	Lifetime time.Duration

	// Log is for the certificate of [Serve] itself; nil means no logging. It must not
	// change while the Authority is in use.
	Log *slog.Logger

	domain  string
	anchors []byte // PEM
	issuer  *x509.Certificate
	key     crypto.Signer
}

const (
	defaultLifetime = 24 * time.Hour

	issuerLife = 365 * 24 * time.Hour
	clockSkew  = time.Minute // maximum delay of a proxy's clock
)

// New returns an Authority with a new root and issuer for names of a trust domain such as
// "cluster.local". "" means any name.
func New(domain string) (*Authority, error) {
	root, rootKey, err := newIssuer("root of "+domain, nil, nil)
	if err != nil {
		return nil, err
	}
	issuer, key, err := newIssuer("identity of "+domain, root, rootKey)
	if err != nil {
		return nil, err
	}
	return &Authority{Lifetime: defaultLifetime, domain: domain, anchors: encode(root), issuer: issuer, key: key}, nil
}

func encode(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func encodeKey(pkcs8 []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func signer(key crypto.PrivateKey) (crypto.Signer, error) {
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("ca: a %T cannot sign", key)
	}
	return s, nil
}

// newIssuer returns a CA certificate that parent signs, or a self-signed one.
func newIssuer(name string, parent *x509.Certificate, by crypto.Signer) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("ca: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-clockSkew), NotAfter: time.Now().Add(issuerLife), MaxPathLen: 1,
	}
	if parent == nil {
		parent, by = template, key
	} else {
		template.MaxPathLen, template.MaxPathLenZero = 0, true // it signs only proxy certificates
	}
	cert, err := sign(template, parent, key.Public(), by)
	return cert, key, err
}

// sign sets the serial number of template, and returns the certificate signed by the key
// of parent.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	return cert, nil
}

// TrustAnchors returns the certificate of the root as PEM, for proxies.
func (a *Authority) TrustAnchors() []byte { return a.anchors }

// Issue issues a certificate for a DNS-like name or a URI without checks. The chain has
// the certificate and that of the issuer. The certificate expires no later than the
// issuer. Issue returns an error if the issuer has expired.
func (a *Authority) Issue(name string, public crypto.PublicKey) (chain []*x509.Certificate, err error) {
	if !a.issuer.NotAfter.After(time.Now()) {
		return nil, fmt.Errorf("ca: the issuer expired at %s; use a new directory for a new issuer", a.issuer.NotAfter.Format(time.RFC3339))
	}
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-clockSkew), NotAfter: time.Now().Add(a.Lifetime), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if a.issuer.NotAfter.Before(template.NotAfter) {
		template.NotAfter = a.issuer.NotAfter
	}
	if isURI(name) {
		u, err := url.Parse(name)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		template.URIs = []*url.URL{u}
	} else {
		template.DNSNames = []string{name}
	}
	leaf, err := sign(template, a.issuer, public, a.key)
	if err != nil {
		return nil, err
	}
	return []*x509.Certificate{leaf, a.issuer}, nil
}
