package sidecar

import (
	"net"
	"net/netip"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/admin"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/tap"
)

// eventRate is a thousand requests a second, for three hundredths of a
// processor. Who watches more has Top.
const eventRate = 3000

// What is read of a client before it is known whether it may watch.
const (
	mostWatches = 100      // at a time, of one connection
	mostAsked   = 64 << 10 // bytes of one
)

// serveAdmin adds the operator's server. With an identity it takes TLS, too, as
// proxies of the mesh speak that scrape it; what is for this machine only stays so.
func (p *Proxy) serveAdmin(c admin.Config, id *identity.Identity) string {
	behind := func(l net.Listener) net.Listener { return l }
	if id != nil {
		behind = withOptionalTLS(id.Server())
	}
	return p.operators.HTTPBehind(behind, "admin", address(p.config.Settings.Admin.Listen), admin.New(c), p.fallback()...)
}

// serveTap adds the server for who watches. Without an identity they are of
// this machine; with one, of the name that the settings have, or nobody.
func (p *Proxy) serveTap(taps *tap.Registry, describe func() layer.Node, id *identity.Identity) string {
	if !p.config.TapServed() {
		return ""
	}
	c := p.config.Settings.Tap
	opts := []tap.ServerOption{tap.WithDescribe(describe), tap.WithEventRate(eventRate)}
	limits := []grpc.ServerOption{grpc.MaxConcurrentStreams(mostWatches), grpc.MaxRecvMsgSize(mostAsked)}
	if id != nil {
		opts = append(opts, tap.WithAllowedIdentities(c.Name))
		limits = append(limits, grpc.Creds(newOptionalTLS(id.Server())))
	}
	server, watched := grpc.NewServer(limits...), tap.NewServer(taps, opts...)
	watched.Register(server)
	return p.operators.GRPCServer("tap", address(c.Listen), server, watched.Shutdown, p.fallback()...)
}

// address is a as it is listened to; any of loopback if it is not valid.
func address(a netip.AddrPort) string {
	if !a.IsValid() {
		return anyPort
	}
	return a.String()
}

func (p *Proxy) fallback() []string {
	if p.config.Fallback {
		return []string{anyPort}
	}
	return nil
}
