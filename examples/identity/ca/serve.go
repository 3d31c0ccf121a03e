package ca

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/gotower/gotower/internal/caller"
)

// minPing is how often a client may send keep-alive PINGs. If it sends more, its connection is
// closed.
const minPing = 5 * time.Second

// These limit clients' connections and requests. They are low, because a client has not proved an
// identity. A Kubernetes token takes about 1 KiB, and a certificate signing request at most 2
// KiB.
const (
	maxMessage   = 64 << 10
	maxHeaders   = 16 << 10
	maxStreams   = 16
	maxHandshake = 10 * time.Second
	maxIdle      = 5 * time.Minute
)

// Serve serves the identity API on l until ctx ends, and closes l. check validates the clients'
// tokens. If name is empty, connections use cleartext. Otherwise they use TLS with a certificate
// for name, which the authority issues. This certificate is renewed at a handshake after 70 % of
// its life, or after the issuer was replaced. Serve returns an error if name is not DNS-like or
// not in the authority's trust domain.
//
// A message may be up to 64 KiB long, and a connection carry up to 16 concurrent requests. A
// connection without requests is closed after five minutes.
func Serve(ctx context.Context, l net.Listener, a *Authority, check Check, name string) error {
	// If one of the goroutines fails, ctx ends the others.
	group, ctx := errgroup.WithContext(ctx)
	if name != "" {
		source, err := a.serverCert(name)
		if err != nil {
			_ = l.Close()
			return err
		}
		_, _ = source.certificate(nil) // it logs an error before the first client connects
		// TLS is below gRPC, because the TLS of gRPC rejects clients without ALPN, such as linkerd's
		// proxies.
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS13, GetCertificate: source.certificate, NextProtos: []string{"h2"}, SessionTicketsDisabled: true,
		})
	}
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(maxHandshake),
	)
	// Nobody may get a certificate with the name of the authority itself.
	Register(server, a, exceptServer(name, check))
	group.Go(func() error {
		// After ctx has ended, the error is that of Stop.
		if err := server.Serve(l); err != nil && ctx.Err() == nil {
			return fmt.Errorf("ca: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop() // calls are short, and clients retry
		return nil
	})
	return group.Wait()
}

// serverCert holds the certificate of an authority's TLS server, and renews it.
type serverCert struct {
	authority *Authority
	name      string
	key       crypto.Signer

	mu     sync.Mutex
	cert   *tls.Certificate
	issuer *issuer   // issuer that signed cert
	renew  time.Time // time after which cert is renewed
}

// CheckServerName returns an error if name cannot be the name in [Serve]: it is not DNS-like, or
// not in the trust domain.
func (a *Authority) CheckServerName(name string) error {
	if isURI(name) {
		return fmt.Errorf("ca: the name of the TLS server %q must be DNS-like", name)
	}
	if err := cmp.Or(caller.Check(name), a.owns(name)); err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	return nil
}

// serverCert returns the source of certificates for a TLS server with the given name. The first
// certificate is issued when the server needs it. serverCert returns an error if name is not DNS-like or
// not in the trust domain.
func (a *Authority) serverCert(name string) (*serverCert, error) {
	if err := a.CheckServerName(name); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	return &serverCert{authority: a, name: name, key: key}, nil
}

// certificate returns the certificate for a handshake. It issues a new certificate if the
// current one has used 70 % of its life, or if the issuer was replaced.
func (s *serverCert) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A new issuer also makes the old certificate obsolete, because its root may be removed.
	i := s.authority.current.Load()
	if s.cert != nil && i == s.issuer && time.Now().Before(s.renew) {
		return s.cert, nil
	}
	log := s.authority.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// Issue fails if the issuer has expired or is not loaded. Then an old certificate would not help: it has expired with
	// its issuer, or there is none.
	chain, err := s.authority.Issue(s.name, s.key.Public())
	if err != nil {
		log.Warn("no new certificate of the authority itself", "name", s.name, "error", err)
		return nil, err
	}
	// The chain lets clients verify the certificate.
	cert := &tls.Certificate{PrivateKey: s.key, Leaf: chain[0]}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	// The certificate may live shorter than Lifetime, if the issuer expires.
	lifetime := time.Until(chain[0].NotAfter)
	s.cert = cert
	s.issuer = i
	s.renew = time.Now().Add(lifetime / 10 * 7)
	log.Info("certified the authority itself", "name", s.name, "expires", chain[0].NotAfter, "renew_in", lifetime/10*7)
	return cert, nil
}
