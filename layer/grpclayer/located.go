package grpclayer

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"

	"github.com/gotower/gotower/internal/caller"
)

// DestinationAddr returns the address that a call came to, on a server that listens on
// TCP; on a client that of the target, if that is one and not a name.
func (Accessor) DestinationAddr(_ context.Context, c *Call) netip.AddrPort {
	switch {
	case c.ctx == nil:
		return netip.AddrPort{}
	case c.incoming:
		if p, ok := peer.FromContext(c.ctx); ok {
			return addrPort(p.LocalAddr)
		}
		return netip.AddrPort{}
	}
	_, endpoint := targetOf(c.conn())
	addr, _ := netip.ParseAddrPort(endpoint)
	return addr
}

func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	addr, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// SourceLabels returns what linkerd's proxy says of the client of a call that a
// server received, as httplayer does: the label tls is true, loopback or
// no_tls_from_remote; client_id is the name that the client proved by a verified
// certificate.
func (a Accessor) SourceLabels(c *Call) map[string]string {
	if c.ctx == nil || !c.incoming {
		return nil
	}
	p, ok := peer.FromContext(c.ctx)
	if !ok {
		return nil
	}
	if secure, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		return caller.Labels(a.Source(c), &secure.State)
	}
	return caller.Labels(a.Source(c), nil)
}

// conn is that of a client's call, or nil.
func (c *Call) conn() *grpc.ClientConn {
	switch rpc := c.rpc.(type) {
	case *clientUnary:
		return rpc.cc
	case *clientStream:
		return rpc.cc
	}
	return nil
}

// authorityOf is what a client sends as authority unless options say otherwise.
func authorityOf(cc *grpc.ClientConn) string {
	scheme, endpoint := targetOf(cc)
	if strings.HasPrefix(scheme, "unix") {
		return "localhost"
	}
	switch resolver.Get(scheme).(type) {
	case nil, *resolverBuilder: // an unregistered resolver came by an option, as ours does
		endpoint = domainOf(endpoint)
	}
	return authority(endpoint)
}

// targetOf splits the target of a client. Both parts are "" without a target.
func targetOf(cc *grpc.ClientConn) (scheme, endpoint string) {
	if cc == nil {
		return "", ""
	}
	scheme, rest, _ := strings.Cut(cc.CanonicalTarget(), "://")
	_, endpoint, _ = strings.Cut(rest, "/")
	if strings.Contains(endpoint, "%") {
		if plain, err := url.PathUnescape(endpoint); err == nil {
			endpoint = plain
		}
	}
	return scheme, endpoint
}
