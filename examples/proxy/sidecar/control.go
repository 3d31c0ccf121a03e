package sidecar

import (
	"context"
	"fmt"
	"time"

	"github.com/go-kit/kit/metrics"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// controller is a connection to a server of the control plane.
type controller struct {
	controlPlane
	name string
}

// controlPlane is a *grpclayer.ControlPlaneConn, or one that is to come.
type controlPlane interface {
	grpc.ClientConnInterface
	layer.Describer
	Close(ctx context.Context) error
}

// dial connects to a server of the control plane: by TLS, with our identity,
// if it has a name, else in clear. Whoever gives us that identity is asked before
// there is a certificate, too; the others see one from their first connection on.
func (p *Proxy) dial(
	ctx context.Context, name string, at settings.Controller, id *identity.Identity, m *meters.Meters,
) (grpc.ClientConnInterface, error) {
	cfg := grpclayer.ControlPlaneConfig{
		Addr: at.Addr, Backoff: p.config.Control.Connect.Backoff, ConnectTimeout: p.config.Control.Connect.Timeout,
		Log: p.log, UserAgent: "gotower-proxy", Resolver: resolver(p.config.Control.DNS, m.DNS(name)),
	}
	labels, connect := meters.NoTLS("disabled"), atOnce
	switch {
	case at.Name == "" || id == nil:
	case name == authority:
		labels, cfg.TLS = meters.ServerTLS(at.Name), id.Bootstrap(at.Name, at.Name, "h2")
	default:
		labels, cfg.TLS = meters.ServerTLS(at.Name), id.Client(at.Name, at.Name, "h2")
		connect = onceCertified(id)
	}
	cfg.DialOptions = []grpc.DialOption{grpc.WithStatsHandler(m.Control(at.Addr, labels))}
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("the %s controller: %w", name, err)
	}
	p.control = append(p.control, controller{conn, name})
	return conn, nil
}

// The servers of the control plane.
const (
	destinations = "destination"
	authority    = "identity"
)

// atOnce connects now.
func atOnce(ctx context.Context, cfg grpclayer.ControlPlaneConfig) (controlPlane, error) {
	return grpclayer.NewControlPlaneConn(ctx, cfg)
}

// resolver finds the addresses of the control plane, keeps them as long as the
// settings say, and counts its lookups.
func resolver(c settings.DNS, lookups metrics.Counter) resolve.Resolver {
	least := c.MinTTL
	if least == 0 && c.MaxTTL > 0 {
		least = min(c.MaxTTL, usualLeast)
	}
	return dns.New(dns.WithRefresh(least, c.MaxTTL), dns.WithMetrics(lookups))
}

// usualLeast is how often package dns asks at the most, unless it is told.
const usualLeast = 5 * time.Second

// proof is the identity of the proxy, and who certifies it.
type proof struct {
	*identity.Identity
	authority grpc.ClientConnInterface
}

// prove makes the identity that the settings have, if any.
func (p *Proxy) prove(ctx context.Context, m *meters.Meters) (*identity.Identity, error) {
	s := p.config.Settings.Identity
	if s == nil {
		return nil, nil //nolint:nilnil // none is asked for
	}
	c, err := s.Load()
	if err != nil {
		return nil, err
	}
	c.Timeout, c.Log = p.config.Control.DispatchTimeout, p.log
	c.Instruments.Expiration, c.Instruments.Refreshes = m.Identity()
	id, err := identity.New(c)
	if err != nil {
		return nil, err
	}
	conn, err := p.dial(ctx, authority, s.Controller, id, m)
	if err != nil {
		return nil, err
	}
	p.identity = &proof{id, conn}
	return id, nil
}

// run has the identity certified until ctx ends.
func (p *proof) run(ctx context.Context) error { return p.Run(ctx, p.authority) }
