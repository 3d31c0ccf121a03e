package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// pair is a self-signed certificate with its key, both in PEM. The zero value is empty.
type pair struct{ cert, key []byte }

// newPair generates a pair for names, which are DNS names and IP addresses, valid from now for
// lifetime.
func newPair(names []string, now time.Time, lifetime time.Duration) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	// A certificate's serial number may have up to 20 bytes. 127 bits are random enough.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return pair{}, err
	}
	// The certificate signs itself, so it is also the authority that the API server trusts.
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0], SerialNumber: serial.String()},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return pair{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}

// clockSkew is how far the webhook's clock may be ahead of the API server's.
const clockSkew = 5 * time.Minute

// parse returns p as a certificate for a TLS server.
func (p pair) parse() (*tls.Certificate, error) {
	c, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, errors.New("the certificate or its key is invalid") // the error may quote the key
	}
	return &c, nil
}

// state holds the webhook's certificates. It serves only current. In a rotation, next becomes
// current, and current becomes previous. The API server trusts all three, because the webhook's
// replicas do not switch at the same moment.
type state struct {
	current, next pair
	previous      []byte // certificate in PEM
}

// bundle returns the certificates that the API server must trust, in PEM.
func (s state) bundle() []byte {
	return slices.Concat(s.current.cert, s.next.cert, s.previous)
}

// step returns the next state in the rotation, or s if nothing needs to change. A current
// certificate that is not usable is replaced immediately. When less than a third of lifetime
// remains, step generates the next certificate. In a later call, overlap or more after trusted, that
// certificate becomes current. In another call, overlap or more after the trusted of that call, the
// previous certificate is removed. trusted is the time at which the API server began to trust the
// certificates in s, so each of the two waits begins when the API server knows the result of the last
// step.
func (s state) step(names []string, now, trusted time.Time, lifetime, overlap time.Duration) (state, error) {
	// current is nil if there is no certificate, or it cannot be used.
	current := s.usable(names, now)
	if current == nil {
		p, err := newPair(names, now, lifetime)
		return state{current: p}, err
	}
	// settled tells that all API servers have had time to trust what is in s.
	settled := now.Sub(trusted) >= overlap
	// The order matters: a rotation in progress ends before another one begins.
	switch {
	// The next certificate has been trusted for long enough, so that it can be served.
	case s.next.cert != nil && settled:
		return state{current: s.next, previous: s.current.cert}, nil
	// All replicas serve the current certificate by now.
	case s.previous != nil && settled:
		return state{current: s.current, next: s.next}, nil
	case s.next.cert == nil && s.previous == nil && current.Leaf.NotAfter.Sub(now) < lifetime/3:
		p, err := newPair(names, now, lifetime)
		return state{current: s.current, next: p}, err
	}
	return s, nil
}

// usable returns the current certificate, or nil if it is invalid, has expired, or lacks one of
// names.
func (s state) usable(names []string, now time.Time) *tls.Certificate {
	c, err := s.current.parse()
	// VerifyHostname also accepts IP addresses.
	if err != nil || now.After(c.Leaf.NotAfter) ||
		slices.ContainsFunc(names, func(name string) bool { return c.Leaf.VerifyHostname(name) != nil }) {
		return nil
	}
	return c
}

// Keys in the Secret's data.
const (
	currentCert, currentKey = "tls.crt", "tls.key"
	nextCert, nextKey       = "next.crt", "next.key"
	previousCert            = "previous.crt"
)

// data returns s as a Secret's data.
func (s state) data() map[string][]byte {
	// A Secret must not contain empty values.
	all := map[string][]byte{
		currentCert: s.current.cert, currentKey: s.current.key, nextCert: s.next.cert, nextKey: s.next.key, previousCert: s.previous,
	}
	for key, value := range all {
		if value == nil {
			delete(all, key)
		}
	}
	return all
}

// newState parses a Secret's data. It returns an error if the next certificate or its key is
// invalid. The current one is not checked, because [state.step] replaces it if needed.
func newState(data map[string][]byte) (state, error) {
	s := state{
		current: pair{data[currentCert], data[currentKey]}, next: pair{data[nextCert], data[nextKey]}, previous: data[previousCert],
	}
	// Without a rotation, there is no next certificate.
	if s.next.cert != nil {
		if _, err := s.next.parse(); err != nil {
			return s, fmt.Errorf("%s: %w", nextCert, err)
		}
	}
	return s, nil
}
