package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc"
)

// Run gets the first certificate from the CA that conn leads to, and then
// one after the other, until ctx ends; then it returns nil. It renews a
// certificate after 70 % of the life that it has left, within MinRefresh and
// MaxRefresh. If there is no answer, or none that can be used, it says so to Log
// and asks again after a back-off, while the certificate that is there serves
// until it expires. The
// timer stands still while the machine is suspended.
//
// An answer is used if the certificate is for our key and our name, those who
// vouch for it lead to the trust anchors, it may be shown by servers and by
// clients, and none of them has expired.
//
// conn is its caller's, who closes it later. It is to fail where it cannot
// connect, as it does unless grpc.WaitForReady is among its default options;
// and, since gRPC waits up to 120 s before it connects again, to have a
// grpc.WithConnectParams that suits Backoff.
//
// It is an error to call it while it runs, or of an Identity that was made by
// [Static].
func (i *Identity) Run(ctx context.Context, conn grpc.ClientConnInterface) error {
	if !i.renews {
		return errors.New("identity: its certificate was given to stay")
	}
	if !i.certifies.CompareAndSwap(false, true) {
		return errors.New("identity: Certify runs already")
	}
	defer i.certifies.Store(false)
	client := pb.NewIdentityClient(conn)
	for ctx.Err() == nil {
		cert, err := i.ask(ctx, client)
		if ctx.Err() != nil {
			break
		}
		var next time.Time
		if err == nil {
			next = i.renewed(cert)
		} else {
			next = i.failed(err)
		}
		_ = backoff.Sleep(ctx, time.Until(next))
	}
	return nil
}

// ask gets a certificate, and checks it.
func (i *Identity) ask(ctx context.Context, client pb.IdentityClient) (*certificate, error) {
	token, err := i.cfg.Token()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, i.cfg.Timeout)
	defer cancel()
	rsp, err := client.Certify(ctx, &pb.CertifyRequest{Identity: i.cfg.Name, Token: token, CertificateSigningRequest: i.cfg.CSR})
	if err != nil {
		return nil, err
	}
	cert, err := i.accept(rsp)
	if err != nil {
		return nil, &layer.Error{Layer: "identity", Target: i.cfg.Name, Reason: "the answer of the CA is refused", Err: err}
	}
	return cert, nil
}

// renewed puts cert to use, and returns when to ask for the next.
func (i *Identity) renewed(cert *certificate) time.Time {
	life := time.Until(cert.expires)
	wait := min(max(life/10*7, i.cfg.MinRefresh), i.cfg.MaxRefresh)
	next := time.Now().Add(wait)
	i.mu.Lock()
	i.refreshes++
	i.failures, i.err, i.next = 0, nil, next
	i.mu.Unlock()
	i.cfg.Instruments.Refreshes.Add(1)
	i.use(cert)
	i.cfg.Log.Info("identity certified", "name", i.cfg.Name, "expires", cert.expires, "renew_in", wait)
	if wait > life {
		i.cfg.Log.Warn("the certificate expires before it is to be renewed",
			"name", i.cfg.Name, "life", life, "min_refresh", i.cfg.MinRefresh)
	}
	return next
}

// failed returns when to ask again.
func (i *Identity) failed(err error) time.Time {
	i.mu.Lock()
	wait := i.cfg.Backoff.Delay(i.failures)
	next := time.Now().Add(wait)
	i.failures++
	i.err, i.next = err, next
	i.mu.Unlock()
	expires := "there is none yet"
	if cert := i.current.Load(); cert != nil {
		expires = clock(cert.expires)
	}
	i.cfg.Log.Warn("no new certificate", "name", i.cfg.Name, "error", err, "retry_in", wait, "expires", expires)
	return next
}

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
