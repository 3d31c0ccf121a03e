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

// controlPlane is a *grpclayer.ControlPlaneConn or a lazyConn.
type controlPlane interface {
	grpc.ClientConnInterface
	layer.Describer
	Close(ctx context.Context) error
}

// dial connects to a server of the control plane. It uses TLS with the proxy's identity if
// the server has a name, or else cleartext. The certificate authority is connected to
// before there is a certificate, others after that.
func (p *Proxy) dial(
	ctx context.Context, name string, at settings.Controller, id *identity.Identity, m *meters.Meters,
) (grpc.ClientConnInterface, error) {
	cfg := grpclayer.ControlPlaneConfig{
		Addr: at.Addr, Backoff: p.config.Control.Connect.Backoff, ConnectTimeout: p.config.Control.Connect.Timeout,
		Log: p.log, UserAgent: "gotower-proxy", Resolver: resolver(p.config.Control.DNS, m.DNS(name)),
	}
	labels, connect := meters.NoTLS("disabled"), newConn
	switch {
	case at.Name == "" || id == nil:
	case name == authority:
		labels, cfg.TLS = meters.ServerTLS(at.Name), id.Bootstrap(at.Name, at.Name, "h2")
	default:
		labels, cfg.TLS = meters.ServerTLS(at.Name), id.Client(at.Name, at.Name, "h2")
		connect = afterCertificate(id)
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

// newConn returns a connection to the control plane without waiting for a certificate.
func newConn(ctx context.Context, cfg grpclayer.ControlPlaneConfig) (controlPlane, error) {
	return grpclayer.NewControlPlaneConn(ctx, cfg)
}

// resolver resolves the addresses of the control plane with the configured TTLs, and
// counts lookups.
func resolver(c settings.DNS, lookups metrics.Counter) resolve.Resolver {
	minTTL := c.MinTTL
	if minTTL == 0 && c.MaxTTL > 0 {
		minTTL = min(c.MaxTTL, defaultMinTTL)
	}
	return dns.New(dns.WithRefresh(minTTL, c.MaxTTL), dns.WithMetrics(lookups))
}

// defaultMinTTL is the minimum refresh of package dns.
const defaultMinTTL = 5 * time.Second

// identityRun is the identity of the proxy and the connection to its certificate
// authority.
type identityRun struct {
	*identity.Identity
	authority grpc.ClientConnInterface
}

// loadIdentity returns the configured identity, or nil.
func (p *Proxy) loadIdentity(ctx context.Context, m *meters.Meters) (*identity.Identity, error) {
	s := p.config.Settings.Identity
	if s == nil {
		return nil, nil //nolint:nilnil // no identity is configured
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
	p.identity = &identityRun{id, conn}
	return id, nil
}

// run renews the certificate until ctx ends.
func (p *identityRun) run(ctx context.Context) error { return p.Run(ctx, p.authority) }
