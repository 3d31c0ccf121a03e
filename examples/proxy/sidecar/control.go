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

// controller is a connection to a server of the control plane, with the name of that
// server.
type controller struct {
	controlPlane
	name string
}

// controlPlane is a connection to a server of the control plane. The implementations are
// *grpclayer.ControlPlaneConn and *lazyConn.
type controlPlane interface {
	grpc.ClientConnInterface
	layer.Describer
	Close(ctx context.Context) error
}

// dial returns a connection to a server of the control plane. The argument name is one of
// the constants destinations, policies and authority. The connection uses TLS if the proxy
// has an identity and the settings have an identity of the server. Otherwise it uses
// cleartext. A TLS connection is made after the proxy has a certificate, unless the server
// is the certificate authority.
func (p *Proxy) dial(
	ctx context.Context, name string, at settings.Controller, id *identity.Identity, m *meters.Meters,
) (grpc.ClientConnInterface, error) {
	cfg := grpclayer.ControlPlaneConfig{
		Addr: at.Addr, Backoff: p.config.Control.Connect.Backoff, ConnectTimeout: p.config.Control.Connect.Timeout,
		Log: p.log, UserAgent: "gotower-proxy", Resolver: resolver(p.config.Control.DNS, m.DNS(name)), Dial: p.dialTCP,
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

// The names of the servers of the control plane, for errors and metrics.
const (
	destinations = "destination"
	policies     = "policy"
	authority    = "identity"
)

// newConn returns a connection to the control plane. Unlike [afterCertificate] it does not
// wait for a certificate of the proxy.
func newConn(ctx context.Context, cfg grpclayer.ControlPlaneConfig) (controlPlane, error) {
	return grpclayer.NewControlPlaneConn(ctx, cfg)
}

// resolver returns a resolver for the addresses of the control plane. It looks a name up
// again after its TTL, which DNS_MIN_TTL and DNS_MAX_TTL limit. It counts its look-ups in
// lookups.
func resolver(c settings.DNS, lookups metrics.Counter) resolve.Resolver {
	minTTL := c.MinTTL
	if minTTL == 0 && c.MaxTTL > 0 {
		minTTL = min(c.MaxTTL, defaultMinTTL)
	}
	return dns.New(dns.WithRefresh(minTTL, c.MaxTTL), dns.WithMetrics(lookups))
}

// defaultMinTTL is the minimum time between two look-ups of a name, if only DNS_MAX_TTL is
// set. If DNS_MAX_TTL is shorter, the minimum is DNS_MAX_TTL.
const defaultMinTTL = 5 * time.Second

// identityRun is the identity of the proxy, with the connection to the certificate
// authority.
type identityRun struct {
	*identity.Identity
	authority grpc.ClientConnInterface
}

// loadIdentity loads the configured identity and connects to the certificate authority. It
// returns nil if no identity is configured.
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

// run requests the first certificate and renews it, until ctx ends.
func (p *identityRun) run(ctx context.Context) error { return p.Run(ctx, p.authority) }
