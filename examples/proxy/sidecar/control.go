package sidecar

import (
	"context"
	"fmt"
	"time"

	"github.com/go-kit/kit/metrics"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// controller is a connection to a server of the control plane.
type controller struct {
	*grpclayer.Control
	name string
}

// dial connects to a server of the control plane: by TLS, with our identity,
// if it has a name, else in clear.
func (p *Proxy) dial(
	ctx context.Context, name string, at settings.Controller, id *identity.Identity, m *meters.Meters,
) (grpc.ClientConnInterface, error) {
	cfg := grpclayer.ControlConfig{
		Addr: at.Addr, Backoff: p.config.Control.Connect.Backoff, ConnectTimeout: p.config.Control.Connect.Timeout,
		Log: p.log, UserAgent: "gotower-proxy", Resolver: resolver(p.config.Control.DNS, m.DNS(name)),
	}
	labels := meters.NoTLS("disabled")
	if at.Name != "" && id != nil {
		labels = meters.ServerTLS(at.Name)
		cfg.TLS = id.Bootstrap(at.Name, at.Name, "h2") // it is asked before there is a certificate, too
	}
	cfg.DialOptions = []grpc.DialOption{grpc.WithStatsHandler(m.Control(ctx, at.Addr, labels))}
	conn, err := grpclayer.NewControl(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("the %s controller: %w", name, err)
	}
	p.control = append(p.control, controller{conn, name})
	return conn, nil
}

// resolver finds the addresses of the control plane, keeps them as long as the
// settings say, and counts its lookups.
func resolver(c settings.DNS, lookups metrics.Counter) resolve.Resolver {
	least := c.MinTTL
	if least == 0 && c.MaxTTL > 0 {
		least = min(c.MaxTTL, usualLeast)
	}
	return dns.New(dns.Refresh(least, c.MaxTTL), dns.Measured(lookups))
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
	c, err := identity.Load(s.Dir, string(s.TrustAnchors), s.TokenFile, s.ServerID, s.ServerName)
	if err != nil {
		return nil, err
	}
	c.MinRefresh, c.MaxRefresh, c.Timeout, c.Log = s.MinRefresh, s.MaxRefresh, p.config.Control.DispatchTimeout, p.log
	c.Instruments.Expiration, c.Instruments.Refreshes = m.Identity()
	id, err := identity.New(c)
	if err != nil {
		return nil, err
	}
	authority, err := p.dial(ctx, "identity", s.Controller, id, m)
	if err != nil {
		return nil, err
	}
	p.identity = &proof{id, authority}
	return id, nil
}

// run has the identity certified until ctx ends.
func (p *proof) run(ctx context.Context) error { return p.Certify(ctx, p.authority) }
