// Package sidecar assembles a whole proxy. The proxy consists of the paths of packages
// outbound and inbound, an identity, connections to the control plane, and the tap and
// admin servers.
package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/examples/proxy/admin"
	"github.com/gotower/gotower/examples/proxy/inbound"
	"github.com/gotower/gotower/examples/proxy/logs"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/outbound"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/view"
)

// Config configures [New]. The proxy has no listener for an address that is not valid, such
// as the zero value.
type Config struct {
	settings.Settings

	Level    *logs.Level // log level that the admin server can change; nil: it cannot
	Title    string      // title of the page /view/
	Fallback bool        // if an address is in use, listen on any free port of loopback instead
	Network  Network     // of all listeners and connections; nil: TCP
}

// Network replaces TCP in tests that run in memory. [layertest.Network] implements it.
type Network interface {
	Listen(network, addr string) (net.Listener, error)
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// Proxy is a proxy that listens on its addresses. It accepts connections while [Proxy.Run]
// runs.
type Proxy struct {
	Addr    string // address of the outbound listener, or of the first one of two
	Inbound string
	Admin   string
	Tap     string // "" if tap is not served

	config    Config
	log       *slog.Logger
	paths     []path       // listeners
	dialTCP   dialFunc     // nil: that of package net
	operators serve.Group  // the admin and tap servers
	identity  *identityRun // nil without identity
	control   []controller // connections to the control plane

	drain           func() // makes open HTTP connections end after their current requests
	end             func() // ends the background work
	requestShutdown func()
	shutdown        chan struct{} // closed by requestShutdown
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

const (
	outboundPath = "outbound"
	inboundPath  = "inbound"
)

// New returns a proxy that listens on its addresses. Run closes the listeners. To close a
// proxy that is not needed, call Run with a context that has ended. If log is nil, nothing
// is logged.
func New(c Config, log *slog.Logger) (*Proxy, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	background, end := context.WithCancel(context.Background())
	ending, drain := context.WithCancel(background)
	p := &Proxy{config: c, log: log, drain: drain, end: end, shutdown: make(chan struct{})}
	if c.Network != nil {
		p.dialTCP, p.operators.Listen = c.Network.DialContext, c.Network.Listen
	}
	p.requestShutdown = sync.OnceFunc(func() { close(p.shutdown) })
	if err := p.assemble(background, ending); err != nil {
		p.operators.Close()
		p.close()
		return nil, err
	}
	return p, nil
}

// assemble builds the parts of the proxy and opens its listeners. When the argument
// background is done, the background work of all parts ends. When the argument ending is
// done, HTTP connections start to drain.
func (p *Proxy) assemble(background, ending context.Context) error {
	c, taps := p.config, new(tap.Registry)
	m := meters.New(meters.Config{RetainIdle: max(c.Metrics.RetainIdle, minRetain), ServiceSuffixes: c.Control.ServiceSuffixes()})
	id, err := p.loadIdentity(background, m)
	if err != nil {
		return err
	}
	destination, err := p.dial(background, destinations, c.Control.Destination, id, m)
	if err != nil {
		return err
	}
	var policy grpc.ClientConnInterface
	if c.Policy.Controller.Addr != "" {
		if policy, err = p.dial(background, policies, c.Policy.Controller, id, m); err != nil {
			return err
		}
	}
	outward, inward := new(ownPorts), new(ownPorts)
	out := outbound.New(background, outbound.Config{
		Outbound: c.Outbound, Control: c.Control, Controller: destination, Identity: id, Own: c.Inbound.IPs, Dial: p.dialTCP,
		Policies: policy, Workload: c.Policy.Workload,
		Origin: c.Outbound.Origin.Find(), Refuse: outward.refuse, Ending: ending,
		SourceLabels: c.Settings.Tap.Labels, Taps: taps, Meters: m, Log: p.log,
	})
	in := inbound.New(background, inbound.Config{
		Inbound: c.Settings.Inbound, Control: c.Control, ClusterNetworks: c.Policy.ClusterNetworks, Controller: destination,
		Policy: c.Policy, PolicyController: policy, Dial: p.dialTCP,
		Identity: id, ServerName: serverName(c.Settings.Identity),
		Origin: c.Settings.Inbound.Origin.Find(), Refuse: inward.refuse, Ending: ending,
		Taps: taps, Meters: m, Log: p.log, Access: c.Log.Access, AccessTo: os.Stderr,
	})
	err = errors.Join(
		p.listen(outboundPath, c.Outbound.Listen, c.Outbound.Accept, certified(id, out)),
		p.listen(inboundPath, []netip.AddrPort{c.Settings.Inbound.Listen}, c.Settings.Inbound.Accept, certified(id, in)))
	p.checkOrigin(background)

	describe := p.describe(out, in)
	operator := admin.Config{
		Ready: ready(id), Metrics: m.Handler(), Level: c.Level, Environ: os.Environ, Describe: describe,
		Page: view.New(view.Config{Registry: taps, Describe: describe, Title: c.Title}),
	}
	if c.Shutdown.EndpointEnabled {
		operator.Shutdown = p.Shutdown
	}
	p.Addr, p.Inbound = p.at(outboundPath), p.at(inboundPath)
	p.Admin, p.Tap = p.serveAdmin(operator, id), p.serveTap(taps, describe, id)
	local, addrErr := localAddrs()
	p.setOwnPorts(outward, inward, local)
	return errors.Join(err, addrErr, p.operators.Err())
}

// minRetain is the minimum time for which idle series are exported. With a much shorter time,
// nearly every write of a series makes a new series.
const minRetain = 100 * time.Millisecond

// checkOrigin logs a warning if the original destination of inbound connections cannot be
// found. The proxy then resets them, because it does not know where to forward them.
func (p *Proxy) checkOrigin(ctx context.Context) {
	at := p.at(inboundPath)
	if at == "" {
		return
	}
	if err := p.config.Settings.Inbound.Origin.Check(ctx); err != nil {
		p.log.WarnContext(ctx, "no original destination: inbound connections are reset; redirect them with examples/init, or set an origin",
			"addr", at, "variable", settings.OwnPrefix+"INBOUND_ORIGIN", "err", err)
	}
}

// describe returns a function that returns the tree of all layers of the proxy, with their
// current state. out and in are the servers of the two paths.
func (p *Proxy) describe(out, in tcplayer.Server) func() layer.Node {
	return func() layer.Node {
		n := layer.Node{Name: "proxy", Children: []layer.Node{layer.Describe(out), layer.Describe(in)}}
		if p.identity != nil {
			n.Children = append(n.Children, p.identity.Describe())
		}
		for _, c := range p.control {
			n.Children = append(n.Children, layer.Node{Name: c.name, Children: []layer.Node{c.Describe()}})
		}
		return n
	}
}

// serverName returns the TLS server name that other proxies use for this proxy, or ""
// without an identity.
func serverName(s *settings.Identity) string {
	if s == nil {
		return ""
	}
	return s.ServerName
}

// ready returns a function that reports whether the proxy has a certificate. It returns nil
// if id is nil, because the proxy then needs no certificate.
func ready(id *identity.Identity) func() bool {
	if id == nil {
		return nil
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	return func() bool { return id.Ready(done) == nil }
}
