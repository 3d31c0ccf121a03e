// Package sidecar is a whole proxy: the paths of packages outbound and inbound, an
// identity, connections to the control plane, and the tap and admin servers.
package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"sync"

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

// Config configures [New]. A listener whose address is not valid is left out.
type Config struct {
	settings.Settings

	Level    *logs.Level // changed by /proxy-log-level; nil: not changed
	Title    string      // of the page at /view/
	Fallback bool        // use any port of loopback if an address is taken
}

// Proxy is bound to its addresses. It serves while Run runs.
type Proxy struct {
	Addr    string // of the outbound listener; of the first, if there are two
	Inbound string
	Admin   string
	Tap     string // "" if tap is not served

	config    Config
	log       *slog.Logger
	paths     []path       // listeners
	operators serve.Group  // admin and tap
	identity  *identityRun // nil without identity
	control   []controller // connections to the control plane

	drain           func() // ends the context of connections
	end             func() // ends the background work
	requestShutdown func()
	shutdown        chan struct{} // closed by requestShutdown
}

const (
	outboundPath = "outbound"
	inboundPath  = "inbound"
)

// New binds a proxy to its addresses. Call Run also to release a proxy that is not
// needed. A nil log means no logging.
func New(c Config, log *slog.Logger) (*Proxy, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	background, end := context.WithCancel(context.Background())
	ending, drain := context.WithCancel(background)
	p := &Proxy{config: c, log: log, drain: drain, end: end, shutdown: make(chan struct{})}
	p.requestShutdown = sync.OnceFunc(func() { close(p.shutdown) })
	if err := p.assemble(background, ending); err != nil {
		p.operators.Close()
		p.close()
		return nil, err
	}
	return p, nil
}

// assemble builds the proxy. Its background work ends with background. Connections drain
// when ending ends.
func (p *Proxy) assemble(background, ending context.Context) error {
	c, taps := p.config, new(tap.Registry)
	m := meters.New(meters.Config{RetainIdle: max(c.Metrics.RetainIdle, 1), ServiceSuffixes: c.Control.ServiceSuffixes()})
	id, err := p.loadIdentity(background, m)
	if err != nil {
		return err
	}
	destination, err := p.dial(background, destinations, c.Control.Destination, id, m)
	if err != nil {
		return err
	}
	outward, inward := new(ownPorts), new(ownPorts)
	out := outbound.New(background, outbound.Config{
		Outbound: c.Outbound, Control: c.Control, Controller: destination, Identity: id, Own: c.Inbound.IPs,
		Origin: c.Outbound.Origin.Find(), Refuse: outward.refuse, Ending: ending,
		SourceLabels: c.Settings.Tap.Labels, Taps: taps, Meters: m, Log: p.log,
	})
	in := inbound.New(background, inbound.Config{
		Inbound: c.Settings.Inbound, Control: c.Control, ClusterNetworks: c.Policy.ClusterNetworks, Controller: destination,
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
	p.setOwnPorts(outward, inward)
	return errors.Join(err, p.operators.Err())
}

// checkOrigin warns if inbound connections cannot be forwarded because their
// original destination is unknown.
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

// describe returns the tree of all layers.
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

// serverName returns the name by which other proxies address this one.
func serverName(s *settings.Identity) string {
	if s == nil {
		return ""
	}
	return s.ServerName
}

// ready reports whether the proxy has a certificate. It is nil without an identity.
func ready(id *identity.Identity) func() bool {
	if id == nil {
		return nil
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	return func() bool { return id.Ready(done) == nil }
}
