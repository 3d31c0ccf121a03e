package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// Run requests certificates from the CA at conn until ctx ends, and then returns nil. It renews a
// certificate after 70 % of its remaining life, but not before MinRefresh and not after
// MaxRefresh. After a failure it logs to Log and retries after a backoff. The current certificate
// stays in use until it expires. The time before a renewal does not include time in which the
// machine is suspended.
//
// Run accepts a certificate if it is for Key and Name, its chain leads to Roots, and it allows
// use by servers and clients. No certificate in the chain may have expired.
//
// You close conn. A call on conn must fail at once while conn is not connected, which is the
// default (no grpc.WaitForReady). gRPC waits up to 120 s between two dials, so you should set
// grpc.WithConnectParams according to Backoff.
//
// Run returns an error if it is already running, or if the Identity is a [Static] one.
func (i *Identity) Run(ctx context.Context, conn grpc.ClientConnInterface) error {
	if !i.renews {
		return errors.New("identity: Run does not support a Static identity")
	}
	// Two runs would request twice as many certificates.
	if !i.certifies.CompareAndSwap(false, true) {
		return errors.New("identity: Run is already running")
	}
	defer i.certifies.Store(false)
	client := pb.NewIdentityClient(conn)
	for ctx.Err() == nil {
		cert, err := i.requestCertificate(ctx, client)
		// An error after the end of ctx is no failure of the CA.
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

// requestCertificate requests a certificate from the CA within Timeout and verifies it.
func (i *Identity) requestCertificate(ctx context.Context, client pb.IdentityClient) (*certificate, error) {
	// The token is read for each request, because Kubernetes replaces it.
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
		return nil, &layer.Error{Layer: "identity", Target: i.cfg.Name, Reason: "invalid response of the CA", Err: err}
	}
	return cert, nil
}

// renewed makes cert the current certificate and returns the time of the next request.
func (i *Identity) renewed(cert *certificate) time.Time {
	lifetime := time.Until(cert.expires)
	// Long before the end, so that a CA that is down for some time does no harm.
	wait := min(max(lifetime/10*7, i.cfg.MinRefresh), i.cfg.MaxRefresh)
	next := time.Now().Add(wait)
	i.mu.Lock()
	i.refreshes++
	i.failures, i.err, i.next = 0, nil, next
	i.mu.Unlock()
	i.cfg.Instruments.Refreshes.Add(1)
	i.cfg.Instruments.Refreshed.Set(float64(time.Now().UnixMilli()) / 1000)
	i.use(cert)
	i.cfg.Log.Info("identity certified", "name", i.cfg.Name, "expires", cert.expires, "renew_in", wait)
	// MinRefresh is longer than the life of the certificate, so handshakes will fail until the renewal.
	if wait > lifetime {
		i.cfg.Log.Warn("the certificate expires before it is to be renewed",
			"name", i.cfg.Name, "life", lifetime, "min_refresh", i.cfg.MinRefresh)
	}
	return next
}

// failed records and logs err, and returns the time at which to retry.
func (i *Identity) failed(err error) time.Time {
	i.mu.Lock()
	// The first failure waits for the shortest backoff.
	wait := i.cfg.Backoff.Delay(i.failures)
	next := time.Now().Add(wait)
	i.failures++
	i.err, i.next = err, next
	i.mu.Unlock()
	i.cfg.Instruments.Failures.Add(1)
	expires := "no certificate yet"
	if cert := i.current.Load(); cert != nil {
		expires = clock(cert.expires)
	}
	i.cfg.Log.Warn("no new certificate", "name", i.cfg.Name, "error", err, "retry_in", wait, "expires", expires)
	return next
}

// accept verifies the response of the CA and returns the certificate in it. The CA is trusted, but a
// mistake there must not replace a certificate that works.
func (i *Identity) accept(rsp *pb.CertifyResponse) (*certificate, error) {
	chain, err := parseChain(rsp.GetLeafCertificate(), rsp.GetIntermediateCertificates())
	if err != nil {
		return nil, err
	}
	if !sameKey(chain[0].PublicKey, i.cfg.Key.Public()) {
		return nil, errors.New("the certificate is for another key")
	}
	// These are the checks of a peer, so that a certificate which peers would reject is not used.
	expires, err := i.verifyOwn(chain)
	if err != nil {
		return nil, err
	}
	// ValidUntil can only shorten the life of the certificate.
	if validUntil := rsp.GetValidUntil(); validUntil != nil && validUntil.AsTime().Before(expires) {
		expires = validUntil.AsTime()
	}
	if !expires.After(time.Now()) {
		return nil, fmt.Errorf("the certificate from the CA expired at %s", clock(expires))
	}
	cert := tls.Certificate{PrivateKey: i.cfg.Key, Leaf: chain[0]}
	for _, c := range chain {
		// The leaf comes first, as crypto/tls requires.
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return &certificate{cert, expires}, nil
}

// parseChain parses a certificate chain in DER. leaf is the identity's certificate, and comes first
// in the result.
func parseChain(leaf []byte, intermediates [][]byte) ([]*x509.Certificate, error) {
	first, err := x509.ParseCertificate(leaf)
	if err != nil {
		return nil, fmt.Errorf("the certificate, which must be DER: %w", err)
	}
	// Leaf first, as TLS sends a chain.
	chain := []*x509.Certificate{first}
	for n, der := range intermediates {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("intermediate certificate %d, which must be DER: %w", n+1, err)
		}
		chain = append(chain, c)
	}
	return chain, nil
}

// verifyOwn verifies the first certificate in chain, which must be for this identity's name. The
// certificate must be valid for servers and for clients. The result is the time until which the
// chain is valid for both.
func (i *Identity) verifyOwn(chain []*x509.Certificate) (expires time.Time, err error) {
	if names := caller.Names(chain[0].Extensions); !containsName(names, i.cfg.Name) {
		return expires, fmt.Errorf("the certificate is for %s, not for %s", list(names), i.cfg.Name)
	}
	expires, err = verify(chain, i.roots, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return expires, err
	}
	asClient, err := verify(chain, i.roots, x509.ExtKeyUsageClientAuth)
	// The certificate must be valid in both roles, so the earlier end counts.
	if asClient.Before(expires) {
		expires = asClient
	}
	return expires, err
}

// verify verifies the first certificate in chain for the given key usage. It returns when the last path
// to a root expires, because a chain is valid as long as one path is. A path expires as soon as one of
// its certificates expires.
func verify(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage) (expires time.Time, err error) {
	intermediates := x509.NewCertPool()
	// Peers get the same chain, so these are all intermediates that they know.
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	verified, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	for _, path := range verified {
		end := path[0].NotAfter
		for _, c := range path {
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
