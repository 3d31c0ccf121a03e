package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"

	"github.com/gotower/gotower/internal/caller"
)

// accept checks what the CA answered.
func (i *Identity) accept(rsp *pb.CertifyResponse) (*certificate, error) {
	chain, err := parseChain(rsp.GetLeafCertificate(), rsp.GetIntermediateCertificates())
	if err != nil {
		return nil, err
	}
	if !sameKey(chain[0].PublicKey, i.cfg.Key.Public()) {
		return nil, errors.New("the certificate is for another key")
	}
	expires, err := i.verifyOwn(chain)
	if err != nil {
		return nil, err
	}
	// What the CA says besides can only shorten what its certificate says.
	if until := rsp.GetValidUntil(); until != nil && until.AsTime().Before(expires) {
		expires = until.AsTime()
	}
	if !expires.After(time.Now()) {
		return nil, fmt.Errorf("the CA says that the certificate expired at %s", clock(expires))
	}
	cert := tls.Certificate{PrivateKey: i.cfg.Key, Leaf: chain[0]}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return &certificate{cert, expires}, nil
}

// parseChain reads a certificate and those that vouch for it.
func parseChain(leaf []byte, others [][]byte) ([]*x509.Certificate, error) {
	first, err := x509.ParseCertificate(leaf)
	if err != nil {
		return nil, fmt.Errorf("the certificate, which must be DER: %w", err)
	}
	chain := []*x509.Certificate{first}
	for n, der := range others {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("intermediate certificate %d, which must be DER: %w", n+1, err)
		}
		chain = append(chain, c)
	}
	return chain, nil
}

// verifyOwn checks a certificate as all those will to whom it is shown, and
// returns when they will cease to believe it.
func (i *Identity) verifyOwn(chain []*x509.Certificate) (expires time.Time, err error) {
	if names := caller.Names(chain[0].Extensions); !has(names, i.cfg.Name) {
		return expires, fmt.Errorf("the certificate is for %s, not for %s", list(names), i.cfg.Name)
	}
	expires, err = verify(chain, i.roots, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return expires, err
	}
	asClient, err := verify(chain, i.roots, x509.ExtKeyUsageClientAuth)
	if asClient.Before(expires) {
		expires = asClient
	}
	return expires, err
}

// verify checks a certificate for one use, and returns when it or one of those
// that vouch for it expires.
func verify(chain []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage) (expires time.Time, err error) {
	others := x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	verified, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: others, KeyUsages: []x509.ExtKeyUsage{use},
	})
	for _, way := range verified {
		end := way[0].NotAfter
		for _, c := range way {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(expires) {
			expires = end
		}
	}
	return expires, err
}
