// Package sidecar assembles a whole proxy from the paths in packages outbound and inbound, an
// identity, connections to the control plane, and the tap and admin servers.
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
	"github.com/gotower/gotower/examples/internal/spans"
	"github.com/gotower/gotower/examples/proxy/admin"
	"github.com/gotower/gotower/examples/proxy/inbound"
	"github.com/gotower/gotower/examples/proxy/logs"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/outbound"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/internal/logwriter"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/view"
)

// Config configures [New]. Addresses that are not valid, such as the zero value, get no listener.
type Config struct {
	settings.Settings

	Level    *logs.Level          // log level that the admin server can change; may be nil
	LogLines *httplayer.LogWriter // the log's output, to count dropped lines; may be nil
	Title    string               // title of the page /view/
	Fallback bool                 // if an address is in use, listen on any free port of loopback instead
	Network  Network              // for all listeners and connections; nil: TCP
	Profiles profiles.Source      // of the application's targets; nil: the control plane's
	Resolver resolve.Resolver     // of the profiles' backends; nil: the control plane's
}

// Network replaces TCP in tests that run in memory. [layertest.Network] implements it.
type Network interface {
	Listen(network, addr string) (net.Listener, error)
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// Proxy is a proxy that listens on its addresses. [Proxy.Run] accepts and serves connections.
type Proxy struct {
	Addr    string // of the first outbound listener
	Inbound string
	Admin   string
	Tap     string // "" if tap is off

	config    Config
	log       *slog.Logger
	paths     []path               // listeners
	dialTCP   dialFunc             // nil: package net's
	access    *httplayer.LogWriter // the access log's lines
	operators serve.Group          // the admin and tap servers
	identity  *identityRun         // nil without an identity
	control   []controller         // connections to the control plane
	spans     *spans.Exporter      // nil without a collector

	drain           func() // lets open HTTP connections finish their current requests
	end             func() // ends the background work
	requestShutdown func()
	shutdown        chan struct{} // closed by requestShutdown
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

const (
	outboundPath = "outbound"
	inboundPath  = "inbound"
)

// New returns a proxy that already listens on its addresses. Run closes the listeners. If the proxy
// is not needed after all, call Run with a context that has ended. A nil log discards all records.
func New(c Config, log *slog.Logger) (*Proxy, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	background, end := context.WithCancel(context.Background())
	// ending is canceled first, so that HTTP connections drain while the background work still runs.
	ending, drain := context.WithCancel(background)
	p := &Proxy{config: c, log: log, drain: drain, end: end, shutdown: make(chan struct{})}
	if c.Network != nil {
		p.dialTCP = c.Network.DialContext
		p.operators.Listen = c.Network.Listen
	}
	// Several calls, for example two requests to /shutdown, must close the channel once.
	p.requestShutdown = sync.OnceFunc(func() { close(p.shutdown) })
	if err := p.assemble(background, ending); err != nil {
		// Some listeners and connections may already be open.
		p.operators.Close()
		p.close()
		return nil, err
	}
	return p, nil
}

// assemble builds the proxy's parts and opens its listeners. background ends the work of all parts,
// and ending makes HTTP connections drain.
func (p *Proxy) assemble(background, ending context.Context) error {
	// The order matters: the identity needs meters, connections to controllers need the identity, and the paths need
	// both.
	c := p.config
	taps := new(tap.Registry)
	m := meters.New(meters.Config{
		RetainIdle: max(c.Metrics.RetainIdle, minRetain), ServiceSuffixes: c.Control.ServiceSuffixes(),
		HostnameLabels: c.Metrics.HostnameLabels,
	})
	p.access = httplayer.NewLogWriter(os.Stderr, func(dropped int, err error) { logwriter.Report(p.log, "access", dropped, err) })
	m.CountDropped("access", p.access.Dropped)
	if c.LogLines != nil {
		m.CountDropped("program", c.LogLines.Dropped)
	}
	// id is nil without an identity, and all connections are then cleartext.
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
	if p.spans, err = p.newSpans(background, id, m); err != nil {
		return err
	}
	// Both are filled below, when the ports of all listeners are known. No connection is served before.
	outward := new(ownPorts) // refused by the outbound path
	inward := new(ownPorts)  // refused by the inbound path
	out := outbound.New(background, outbound.Config{
		Outbound: c.Outbound, Control: c.Control, Controller: destination, Identity: id, PodIPs: c.Inbound.IPs, Dial: p.dialTCP,
		Policies: policy, Workload: c.Policy.Workload, Profiles: c.Profiles, Resolver: c.Resolver,
		Origin: c.Outbound.Origin.Find(), Refuse: outward.refuse, Ending: ending,
		SourceLabels: c.Settings.Tap.Labels, Taps: taps, Spans: p.spans, Meters: m, Log: p.log,
	})
	in := inbound.New(background, inbound.Config{
		Inbound: c.Settings.Inbound, Control: c.Control, ClusterNetworks: c.Policy.ClusterNetworks, Controller: destination,
		Policy: c.Policy, PolicyController: policy, Dial: p.dialTCP,
		Identity: id, ServerName: serverName(c.Settings.Identity), ID: serverID(c.Settings.Identity), Gateway: out,
		Origin: c.Settings.Inbound.Origin.Find(), Refuse: inward.refuse, Ending: ending,
		Taps: taps, Spans: p.spans, Meters: m, Log: p.log, Access: c.Log.Access, AccessLog: p.access,
	})
	// Try both, so that the user sees both errors.
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
	p.Addr = p.addrOf(outboundPath)
	p.Inbound = p.addrOf(inboundPath)
	p.Admin = p.serveAdmin(operator, id)
	p.Tap = p.serveTap(taps, describe, id)
	// Only now are all listeners open, so that their ports are known.
	local, addrErr := localAddrs()
	p.setOwnPorts(outward, inward, local)
	return errors.Join(err, addrErr, p.operators.Err())
}

// minRetain is how long at least idle series are exported. With a much shorter time, nearly every
// write would create a new series.
const minRetain = 100 * time.Millisecond

// checkOrigin warns if the original destination of inbound connections cannot be found. The proxy
// then resets them, because it does not know where to forward them.
func (p *Proxy) checkOrigin(ctx context.Context) {
	// No inbound listener, no warning.
	addr := p.addrOf(inboundPath)
	if addr == "" {
		return
	}
	if err := p.config.Settings.Inbound.Origin.Check(ctx); err != nil {
		p.log.WarnContext(ctx, "no original destination: inbound connections are reset; redirect them with examples/init, or set an origin",
			"addr", addr, "variable", settings.OwnPrefix+"INBOUND_ORIGIN", "err", err)
	}
}

// describe returns a function that returns the tree of all layers with their current state. out and
// in are the servers of the two paths.
func (p *Proxy) describe(out, in tcplayer.Server) func() layer.Node {
	// The tree is built for each call, because its state changes.
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

// serverName returns the TLS server name under which other proxies reach this one, or "" without an
// identity.
func serverName(s *settings.Identity) string {
	if s == nil {
		return ""
	}
	return s.ServerName
}

// serverID returns the identity in this proxy's certificate, or "" without an identity.
func serverID(s *settings.Identity) string {
	if s == nil {
		return ""
	}
	return s.ServerID
}

// ready returns a function that reports whether the proxy has a certificate. It returns nil if id
// is nil, because no certificate is needed then.
func ready(id *identity.Identity) func() bool {
	if id == nil {
		return nil
	}
	// Ready with a context that has ended does not wait.
	done, cancel := context.WithCancel(context.Background())
	cancel()
	return func() bool { return id.Ready(done) == nil }
}
