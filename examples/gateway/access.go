package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer/httplayer"
)

// withAccess returns st with the layers that apply a, a listener's or route's rules. The layer of a rule
// that is not set is nil, and With leaves it out.
func (g *gateway) withAccess(st httplayer.Stack, a *config.Access) httplayer.Stack {
	var size httplayer.Layer
	if a.MaxRequestBodyBytes > 0 {
		size = httplayer.LimitRequestBody(int64(a.MaxRequestBodyBytes))
	}
	return st.
		With("client_cidrs", clientCIDRs(a.ClientCIDRs)).
		With("basic_auth", basicAuth(a.BasicAuth)).
		With("jwt", g.jwt(a.JWT)).
		With("max_request_body", size)
}

// clientCIDRs returns a layer that rejects requests from addresses that c does not accept, or nil
// if c is nil.
func clientCIDRs(c *config.ClientCIDRs) httplayer.Layer {
	if c == nil {
		return nil
	}
	return func(next httplayer.Service) httplayer.Service { return &cidrService{next, c} }
}

// cidrService is the service of [clientCIDRs].
type cidrService struct {
	httplayer.Service
	*config.ClientCIDRs
}

// Call sends req if the client's address is accepted, and otherwise fails with status 403.
func (s *cidrService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	client := accessor{}.Source(req).Addr().WithZone("")
	if !accepts(s.ClientCIDRs, client) {
		return nil, &httplayer.StatusError{
			Code: http.StatusForbidden, Reason: "clientCIDRs: " + client.String(), Detail: "this address is not allowed",
		}
	}
	return s.Service.Call(ctx, req)
}

// accepts reports whether c accepts a client with this address.
func accepts(c *config.ClientCIDRs, client netip.Addr) bool {
	return !contains(c.Deny, client) && (len(c.Allow) == 0 || contains(c.Allow, client))
}

// peerOf returns the peer's IP address and port.
func peerOf(conn net.Conn) netip.AddrPort {
	peer, _ := netip.ParseAddrPort(conn.RemoteAddr().String()) // the zero value for other types of addresses
	return netip.AddrPortFrom(peer.Addr().Unmap().WithZone(""), peer.Port())
}

// contains reports whether addr is in one of the networks in list.
func contains(list []config.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(list, func(p config.Prefix) bool { return p.Contains(addr) })
}
