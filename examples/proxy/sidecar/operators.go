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

// eventRate limits tap events per second for all watchers together. A request causes three events,
// so a single watcher sees a thousand requests per second, which costs 3 % of a core.
// [tap.Registry.Top] has no such limit.
const eventRate = 3000

// The tap server's limits. They apply before a client is authorized.
const (
	maxWatches     = 100      // concurrent watches per connection
	maxRequestSize = 64 << 10 // bytes of one request
)

// serveAdmin adds the admin server to p.operators and returns its address. With an identity, the
// server accepts TLS in addition to cleartext, so that scrapers in the mesh can use it.
func (p *Proxy) serveAdmin(c admin.Config, id *identity.Identity) string {
	// Without an identity, the listener stays as it is.
	wrap := func(l net.Listener) net.Listener { return l }
	if id != nil {
		wrap = withOptionalTLS(id.Server())
	}
	return p.operators.HTTPBehind(wrap, "admin", address(p.config.Settings.Admin.Listen), admin.New(c), p.fallback()...)
}

// serveTap adds the tap server to p.operators and returns its address, or "" if tap is off. With an
// identity, a TLS client may watch requests if it is the configured one, and a cleartext client
// only from this machine.
func (p *Proxy) serveTap(taps *tap.Registry, describe func() layer.Node, id *identity.Identity) string {
	if !p.config.TapServed() {
		return ""
	}
	c := p.config.Settings.Tap
	opts := []tap.ServerOption{tap.WithDescribe(describe), tap.WithEventRate(eventRate)}
	limits := []grpc.ServerOption{grpc.MaxConcurrentStreams(maxWatches), grpc.MaxRecvMsgSize(maxRequestSize)}
	if id != nil {
		opts = append(opts, tap.WithAllowedIdentities(c.Name))
		// TLS is optional, because clients on this machine use cleartext.
		limits = append(limits, grpc.Creds(newOptionalTLS(id.Server())))
	}
	server := grpc.NewServer(limits...)
	// Open watches would otherwise delay the shutdown.
	watched := tap.NewServer(taps, opts...)
	watched.Register(server)
	return p.operators.GRPCServer("tap", address(c.Listen), server, watched.Shutdown, p.fallback()...)
}

// address returns a as host:port, or anyPort if it is not valid.
func address(a netip.AddrPort) string {
	if !a.IsValid() {
		return anyPort
	}
	return a.String()
}

// fallback returns where the admin and tap servers should listen if their own address is in use. It
// is empty unless Config.Fallback is set.
func (p *Proxy) fallback() []string {
	if p.config.Fallback {
		return []string{anyPort}
	}
	return nil
}
