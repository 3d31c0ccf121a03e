package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
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

// minPing is the minimum interval between keep-alive PINGs of a client. The connection of a
// client that sends PINGs more often is closed.
const minPing = 5 * time.Second

// The limits of the connections and requests of clients. They are low, because a client has
// not proved an identity. A token of Kubernetes has about 1 KiB, and a certificate signing
// request at most 2 KiB.
const (
	maxMessage   = 64 << 10
	maxHeaders   = 16 << 10
	maxStreams   = 16
	maxHandshake = 10 * time.Second
	maxIdle      = 5 * time.Minute
)

// Serve serves the identity API on l until ctx ends, and closes l. check validates the
// tokens of clients. If name is empty, connections use cleartext. Otherwise they use TLS
// with a certificate for name, which the authority issues. This certificate is renewed at a
// handshake after 70 % of its life, or after the issuer was replaced. Serve returns an
// error if name is not DNS-like or not in the trust domain of the authority.
//
// A message has at most 64 KiB, and a connection at most 16 concurrent requests. A
// connection without requests is closed after five minutes.
func Serve(ctx context.Context, l net.Listener, a *Authority, check Check, name string) error {
	group, ctx := errgroup.WithContext(ctx)
	if name != "" {
		own, err := a.own(name)
		if err != nil {
			_ = l.Close()
			return err
		}
		_, _ = own.certificate(nil) // it logs an error before the first client connects
		// TLS is below gRPC, because the TLS of gRPC rejects clients without ALPN, such as linkerd's
		// proxies.
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS13, GetCertificate: own.certificate, NextProtos: []string{"h2"}, SessionTicketsDisabled: true,
		})
	}
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(maxHandshake),
	)
	Register(server, a, butOwn(name, check))
	group.Go(func() error {
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

// own has the certificate of the TLS server of an authority, and renews it.
type own struct {
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
	if err := errors.Join(caller.Check(name), a.owns(name)); err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	return nil
}

// own returns the source of the certificates of a TLS server with the given name. The first
// certificate is issued when the server needs it. own returns an error if name is not DNS-like
// or not in the trust domain.
func (a *Authority) own(name string) (*own, error) {
	if err := a.CheckServerName(name); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	return &own{authority: a, name: name, key: key}, nil
}

// certificate returns the certificate for a handshake. It issues a new certificate if the
// current one has used 70 % of its life, or if the issuer was replaced.
func (o *own) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := o.authority.current.Load()
	if o.cert != nil && i == o.issuer && time.Now().Before(o.renew) {
		return o.cert, nil
	}
	log := o.authority.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	chain, err := o.authority.Issue(o.name, o.key.Public())
	if err != nil {
		log.Warn("no new certificate of the authority itself", "name", o.name, "error", err)
		return nil, err
	}
	cert := &tls.Certificate{PrivateKey: o.key, Leaf: chain[0]}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	life := time.Until(chain[0].NotAfter)
	o.cert, o.issuer, o.renew = cert, i, time.Now().Add(life/10*7)
	log.Info("certified the authority itself", "name", o.name, "expires", chain[0].NotAfter, "renew_in", life/10*7)
	return cert, nil
}
