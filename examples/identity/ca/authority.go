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
	// Lifetime is how long a certificate is valid; a day, as linkerd's. Proxies
	// wait for 10 s at least before they renew, so that with less than some 20 s
	// they have none at times. It is not to be changed while the Authority is in
	// use.
	Lifetime time.Duration

	// Log is told of the certificate that [Serve] makes for itself. nil is for
	// none; it is not to be changed while the Authority is in use.
	Log *slog.Logger

	domain  string
	anchors []byte // PEM
	issuer  *x509.Certificate
	key     crypto.Signer
}

const (
	defaultLifetime = 24 * time.Hour

	issuerLife = 365 * 24 * time.Hour
	clockSkew  = time.Minute // by which a proxy's clock may be behind
)

// New makes a root and an issuer for names of a trust domain, "cluster.local";
// "" is for any name.
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

// newIssuer makes one that parent vouches for, or that vouches for itself.
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
		template.MaxPathLen, template.MaxPathLenZero = 0, true // it vouches for proxies alone
	}
	cert, err := sign(template, parent, key.Public(), by)
	return cert, key, err
}

// sign gives a certificate a number, and a signature.
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

// TrustAnchors returns the certificate of the root, PEM: what proxies are given.
func (a *Authority) TrustAnchors() []byte { return a.anchors }

// Issue certifies a key for name: DNS-like, or a URI. It asks no questions. The
// chain has the certificate first, then the issuer's. It expires with the issuer,
// at the latest, and is an error once that has.
func (a *Authority) Issue(name string, public crypto.PublicKey) (chain []*x509.Certificate, err error) {
	if !a.issuer.NotAfter.After(time.Now()) {
		return nil, fmt.Errorf("ca: the issuer expired at %s: a new directory would have a new one", a.issuer.NotAfter.Format(time.RFC3339))
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
