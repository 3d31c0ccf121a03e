package tap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// ServerOption configures a [Server] of [NewServer] or [Serve].
type ServerOption func(*Server)

// WithAllowedIdentities allows clients on other machines to watch if their verified certificate
// carries one of the given names as a DNS name or a URI among its subject alternative names. The
// gRPC server's credentials must require client certificates. With this option, a TLS client on
// this machine also needs one of the names.
func WithAllowedIdentities(names ...string) ServerOption {
	return func(s *Server) {
		for _, name := range names {
			if !strings.Contains(name, "://") { // URIs are case-sensitive
				name = strings.ToLower(name)
			}
			s.access.identities = append(s.access.identities, name)
		}
	}
}

// WithAllowRemote allows every client of any machine to watch. Requests contain private
// data, so use it only if the clients are restricted by other means.
func WithAllowRemote() ServerOption {
	return func(s *Server) { s.access.everyone = true }
}

// access decides which clients may watch. The zero access allows only clients of this
// machine.
type access struct {
	everyone   bool     // any client may watch
	identities []string // URIs, and DNS names in lower case
}

// permit returns nil if a call's client may watch, and otherwise a rejection with the code
// Unauthenticated. ctx is the call context.
func (a *access) permit(ctx context.Context) error {
	if err := a.check(ctx); err != nil {
		return reject(codes.Unauthenticated, err)
	}
	return nil
}

// check returns why a client may not watch, or nil.
func (a *access) check(ctx context.Context) error {
	if a.everyone {
		return nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return errors.New("the address of the client is unknown")
	}
	// With names given, a TLS client needs one of them, wherever it is.
	if tls, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(a.identities) > 0 {
		return a.permitIdentity(tls)
	}
	switch {
	case !isLocal(p):
		return fmt.Errorf("%v is not on this machine", p.Addr)
	case isForwarded(ctx):
		return errors.New("the call was forwarded by a proxy")
	}
	return nil
}

// isForwarded reports whether a proxy has forwarded the call. Then the address tells nothing about the
// client, which may be on another machine.
func isForwarded(ctx context.Context) bool {
	for _, name := range [...]string{"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"} {
		if len(metadata.ValueFromIncomingContext(ctx, name)) > 0 {
			return true
		}
	}
	return false
}

// permitIdentity returns nil if the verified certificate of a TLS client has one of the allowed names.
func (a *access) permitIdentity(tls credentials.TLSInfo) error {
	// Only verified certificates count, because a server may ask for
	// certificates without verifying them.
	if len(tls.State.VerifiedChains) == 0 || len(tls.State.VerifiedChains[0]) == 0 {
		return errors.New("the client has no verified certificate")
	}
	cert := tls.State.VerifiedChains[0][0]
	names := slices.Clone(cert.DNSNames)
	for i, name := range names {
		names[i] = strings.ToLower(name)
	}
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	for _, name := range names {
		if slices.Contains(a.identities, name) {
			return nil
		}
	}
	return fmt.Errorf("the client %q may not watch", names)
}

// isLocal reports whether the client p is on this machine: its address is a Unix socket or
// a loopback address.
func isLocal(p *peer.Peer) bool {
	if p.Addr == nil {
		return false
	}
	if p.Addr.Network() == "unix" {
		return true
	}
	addr, err := netip.ParseAddrPort(p.Addr.String())
	return err == nil && addr.Addr().IsLoopback()
}
