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

// eventRate limits the events to each watcher: a thousand requests a second, which cost
// three hundredths of a processor. Top has no such limit.
const eventRate = 3000

// Limits for clients before they are authorized.
const (
	maxWatches     = 100      // concurrent watches per connection
	maxRequestSize = 64 << 10 // bytes of one request
)

// serveAdmin adds the admin server. With an identity it accepts TLS too, for scrapers in
// the mesh.
func (p *Proxy) serveAdmin(c admin.Config, id *identity.Identity) string {
	wrap := func(l net.Listener) net.Listener { return l }
	if id != nil {
		wrap = withOptionalTLS(id.Server())
	}
	return p.operators.HTTPBehind(wrap, "admin", address(p.config.Settings.Admin.Listen), admin.New(c), p.fallback()...)
}

// serveTap adds the tap server. Without an identity, clients of this machine may watch.
// With an identity, the client with the configured name may watch.
func (p *Proxy) serveTap(taps *tap.Registry, describe func() layer.Node, id *identity.Identity) string {
	if !p.config.TapServed() {
		return ""
	}
	c := p.config.Settings.Tap
	opts := []tap.ServerOption{tap.WithDescribe(describe), tap.WithEventRate(eventRate)}
	limits := []grpc.ServerOption{grpc.MaxConcurrentStreams(maxWatches), grpc.MaxRecvMsgSize(maxRequestSize)}
	if id != nil {
		opts = append(opts, tap.WithAllowedIdentities(c.Name))
		limits = append(limits, grpc.Creds(newOptionalTLS(id.Server())))
	}
	server, watched := grpc.NewServer(limits...), tap.NewServer(taps, opts...)
	watched.Register(server)
	return p.operators.GRPCServer("tap", address(c.Listen), server, watched.Shutdown, p.fallback()...)
}

// address returns the address to listen on. If a is not valid, that is any port of
// loopback.
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
