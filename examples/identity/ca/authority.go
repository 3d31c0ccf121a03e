package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"
)

// Authority is a certificate authority. It issues certificates for one trust domain's names. It
// is safe for concurrent use.
type Authority struct {
	// Lifetime is how long a certificate is valid. The default is one day, as in linkerd.
	// It should be at least 20 s, because a proxy waits at least 10 s before it renews its
	// certificate. Do not change it while the Authority is in use.
	Lifetime time.Duration

	// Log receives messages about the certificate that the authority issues for its own TLS
	// server, see [Serve]. If it is nil, nothing is logged. Do not change it while the
	// Authority is in use.
	Log *slog.Logger

	domain  string                 // trust domain of the names that are certified; "" means any
	current atomic.Pointer[issuer] // nil before the first Replace
}

// issuer is the certificate that signs the certificates of proxies. It is immutable.
type issuer struct {
	anchors []byte              // trust anchors that verify chain, in PEM
	chain   []*x509.Certificate // certificate of the issuer, followed by intermediate certificates
	key     crypto.Signer       // the issuer's private key
}

// ErrNoIssuer is the error of [Authority.Issue] before the first [Authority.Replace].
var ErrNoIssuer = errors.New("ca: the authority has no issuer yet")

// Lifetimes of certificates. The root outlives many issuers, because all proxies must trust it.
const (
	defaultLifetime = 24 * time.Hour

	rootLife   = 10 * issuerLife
	issuerLife = 365 * 24 * time.Hour
	clockSkew  = time.Minute // a certificate is valid from this long before its issue
)

// Empty returns an Authority without an issuer. It certifies a trust domain's names, such as
// "cluster.local", after the first [Authority.Replace]. An empty domain means any name.
func Empty(domain string) *Authority { return &Authority{Lifetime: defaultLifetime, domain: domain} }

// New returns an Authority with a new root and a new issuer. It certifies the trust domain's
// names, or any name if domain is empty.
func New(domain string) (*Authority, error) {
	f, err := Generate(domain)
	if err != nil {
		return nil, err
	}
	a := Empty(domain)
	return a, a.Replace(f.Anchors, f.Issuer, f.Key)
}

// Files holds an authority in PEM: the trust anchors, the certificate that signs the proxies'
// certificates, and its private key.
type Files struct{ Anchors, Issuer, Key []byte }

// Generate returns a new root and a new issuer for a trust domain. The root's key is discarded.
func Generate(domain string) (Files, error) {
	// The root signs itself.
	root, rootKey, err := newCA("root.linkerd."+domain, rootLife, nil, nil) // signed by its own key
	if err != nil {
		return Files{}, err
	}
	issuer, issuerKey, err := newCA("identity.linkerd."+domain, issuerLife, root, rootKey)
	if err != nil {
		return Files{}, err
	}
	// Only the issuer's key is kept.
	pkcs8, err := x509.MarshalPKCS8PrivateKey(issuerKey)
	if err != nil {
		return Files{}, fmt.Errorf("ca: %w", err)
	}
	return Files{encode(root), encode(issuer), encodeKey(pkcs8)}, nil
}

// Replace replaces the trust anchors and the issuer. All arguments are PEM. cert is the issuer's
// certificate, followed by intermediate certificates if no trust anchor has signed it. If the
// anchors do not verify cert, or key does not belong to cert, Replace returns an error and
// changes nothing.
func (a *Authority) Replace(anchors, cert, key []byte) error {
	// X509KeyPair checks that the key belongs to the certificate.
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("ca: the issuer: %w", err)
	}
	// next takes effect as a whole, or not at all.
	next := &issuer{anchors: anchors}
	if next.key, err = signer(pair.PrivateKey); err != nil {
		return err
	}
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("ca: the issuer: %w", err)
		}
		next.chain = append(next.chain, c)
	}
	if err := next.verify(); err != nil {
		return err
	}
	a.current.Store(next)
	return nil
}

// verify returns an error if the trust anchors do not verify the issuer's certificate, or if that
// certificate may not sign certificates.
func (i *issuer) verify() error {
	roots := x509.NewCertPool()
	intermediates := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(i.anchors) {
		return errors.New("ca: the trust anchors have no certificate in PEM")
	}
	// The first certificate is the issuer's own.
	for _, c := range i.chain[1:] {
		intermediates.AddCert(c)
	}
	cert := i.chain[0]
	if !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("ca: the issuer %q may not issue certificates: must be a CA with the key usage cert sign",
			cert.Subject.CommonName)
	}
	// The issuer signs certificates for any use.
	_, err := cert.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("ca: the trust anchors do not verify the issuer: %w", err)
	}
	return nil
}

// encode returns cert in PEM.
func encode(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// encodeKey returns a private key in PEM. pkcs8 is the key in the encoding PKCS #8.
func encodeKey(pkcs8 []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// signer returns key as a signer, or an error if key cannot sign.
func signer(key crypto.PrivateKey) (crypto.Signer, error) {
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("ca: a %T cannot sign", key)
	}
	return s, nil
}

// newCA returns a new CA certificate with the given common name and lifetime, and its key. The
// certificate is signed by signer, the key of parent. If parent is nil, it is signed by its
// own key.
func newCA(name string, lifetime time.Duration, parent *x509.Certificate, signer crypto.Signer) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("ca: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-clockSkew), NotAfter: time.Now().Add(lifetime), MaxPathLen: 1,
	}
	// A root signs its own certificate. Its issuers may not have further ones below them.
	if parent == nil {
		parent = template
		signer = key
	} else {
		template.MaxPathLen, template.MaxPathLenZero = 0, true // it signs only proxy certificates
	}
	cert, err := sign(template, parent, key.Public(), signer)
	return cert, key, err
}

// sign returns the certificate that template describes. public is the key in
// the certificate. signer, the key of parent, signs the certificate.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	// CreateCertificate copies the template's fields.
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	return cert, nil
}

// TrustAnchors returns the trust anchors in PEM. Proxies need them to verify each other. It
// returns nil before the first [Authority.Replace].
func (a *Authority) TrustAnchors() []byte {
	if i := a.current.Load(); i != nil {
		return i.anchors
	}
	return nil
}

// Issue returns a certificate with the given name and public key, followed by the issuer's
// certificates. The name is a DNS name or a URI. Issue does not check whether the client may use
// the name. The certificate is valid for Lifetime, but not longer than the issuer's certificate.
// Issue returns an error if a has no issuer, or if the issuer's certificate has expired.
func (a *Authority) Issue(name string, public crypto.PublicKey) (chain []*x509.Certificate, err error) {
	i := a.current.Load()
	if i == nil {
		return nil, ErrNoIssuer
	}
	return i.issue(name, public, a.Lifetime)
}

// issue signs a certificate for name and the key public.
func (i *issuer) issue(name string, public crypto.PublicKey, lifetime time.Duration) ([]*x509.Certificate, error) {
	expires := i.chain[0].NotAfter
	if !expires.After(time.Now()) {
		return nil, fmt.Errorf("ca: the issuer expired at %s; use a new issuer", expires.Format(time.RFC3339))
	}
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-clockSkew), NotAfter: time.Now().Add(lifetime), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	// A certificate that outlives its issuer could not be verified.
	if expires.Before(template.NotAfter) {
		template.NotAfter = expires
	}
	// A SPIFFE ID is a URI, and any other identity a DNS name.
	if isURI(name) {
		u, err := url.Parse(name)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		template.URIs = []*url.URL{u}
	} else {
		template.DNSNames = []string{name}
	}
	leaf, err := sign(template, i.chain[0], public, i.key)
	if err != nil {
		return nil, err
	}
	// Clients need the intermediate certificates to verify the first one.
	return append([]*x509.Certificate{leaf}, i.chain...), nil
}
