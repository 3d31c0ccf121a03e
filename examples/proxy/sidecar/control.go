package sidecar

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/go-kit/kit/metrics"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/internal/spans"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/traces"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// controller is a connection to a server in the control plane, with the server's name.
type controller struct {
	controlPlane
	name string
}

// controlPlane is a connection to a server in the control plane. *grpclayer.ControlPlaneConn and
// *lazyConn implement it.
type controlPlane interface {
	grpc.ClientConnInterface
	layer.Describer
	Close(ctx context.Context) error
}

// dial returns a connection to a server in the control plane. name is one of the constants below.
// The connection uses TLS if the proxy has an identity and the server's identity is known, and is
// otherwise in cleartext. TLS requires the proxy's certificate, so the connection is only made when
// the proxy has one. The certificate authority is the exception: it issues the first one, so the proxy
// connects to it without a certificate. The connection is added to p.control, and is closed together
// with the proxy.
func (p *Proxy) dial(
	ctx context.Context, name string, addr settings.Controller, id *identity.Identity, m *meters.Meters,
) (grpc.ClientConnInterface, error) {
	cfg := grpclayer.ControlPlaneConfig{
		Addr: addr.Addr, Backoff: p.config.Control.Connect.Backoff, ConnectTimeout: p.config.Control.Connect.Timeout,
		Log: p.log, UserAgent: "gotower-proxy", Resolver: resolver(p.config.Control.DNS, m.DNS(name)), Dial: p.dialTCP,
	}
	labels := meters.NoTLS("disabled")
	connect := newConn
	// The order matters: only with an identity and a known name is TLS possible, and the authority must be reachable
	// before the first certificate.
	switch {
	case addr.Name == "" || id == nil:
	case name == authority:
		labels = meters.ServerTLS(addr.Name)
		cfg.TLS = id.Bootstrap(addr.Name, addr.Name, "h2")
	default:
		labels = meters.ServerTLS(addr.Name)
		cfg.TLS = id.Client(addr.Name, addr.Name, "h2")
		connect = afterCertificate(id)
	}
	cfg.DialOptions = []grpc.DialOption{grpc.WithStatsHandler(m.Control(addr.Addr, labels))}
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("the %s controller: %w", name, err)
	}
	// The connection is closed together with the proxy, and appears in its description.
	p.control = append(p.control, controller{conn, name})
	return conn, nil
}

// Names of the control plane's servers in errors and metrics.
const (
	destinations = "destination"
	policies     = "policy"
	authority    = "identity"
	collector    = "trace_collector"
)

// newSpans returns the exporter for spans, or nil if no collector is configured. The collector is
// reached like a server in the control plane.
func (p *Proxy) newSpans(ctx context.Context, id *identity.Identity, m *meters.Meters) (*spans.Exporter, error) {
	c := p.config.Traces
	if c.Collector.Addr == "" {
		return nil, nil //nolint:nilnil // a nil exporter records nothing
	}
	conn, err := p.dial(ctx, collector, c.Collector, id, m)
	if err != nil {
		return nil, err
	}
	// Spans without a host are still useful.
	host, err := os.Hostname()
	if err != nil {
		p.log.Warn("spans have no host.name", "err", err)
	}
	// These attributes describe the process, and are sent with each batch of spans instead of each span.
	resource := []spans.Attribute{
		spans.Int("process.pid", os.Getpid()),
		spans.Int("process.start_timestamp", int(time.Now().Unix())),
		spans.String("host.name", host),
	}
	// Sorted, because the order of a map changes with each run.
	for _, key := range slices.Sorted(maps.Keys(c.Attributes)) {
		resource = append(resource, spans.String(key, c.Attributes[key]))
	}
	exporter := spans.New(spans.Config{Send: spans.GRPC(conn), Resource: resource, Scope: traces.Scope, Log: p.log})
	m.CountSpans(exporter.Counts)
	return exporter, nil
}

// newConn connects to the control plane. Unlike [afterCertificate], it does not wait for the
// proxy's certificate.
func newConn(ctx context.Context, cfg grpclayer.ControlPlaneConfig) (controlPlane, error) {
	return grpclayer.NewControlPlaneConn(ctx, cfg)
}

// resolver returns a resolver for the control plane's addresses. It repeats each lookup after the
// TTL within the bounds of c, and counts them in lookups.
func resolver(c settings.DNS, lookups metrics.Counter) resolve.Resolver {
	// A maximum alone would allow a TTL of 0, and so a lookup without a pause.
	minTTL := c.MinTTL
	if minTTL == 0 && c.MaxTTL > 0 {
		minTTL = min(c.MaxTTL, defaultMinTTL)
	}
	return dns.New(dns.WithRefresh(minTTL, c.MaxTTL), dns.WithMetrics(lookups))
}

// defaultMinTTL is how often a name is looked up at most if only DNS_MAX_TTL is set. A shorter
// DNS_MAX_TTL takes precedence.
const defaultMinTTL = 5 * time.Second

// identityRun is the proxy's identity with a connection to the certificate authority.
type identityRun struct {
	*identity.Identity
	authority grpc.ClientConnInterface
}

// loadIdentity loads the configured identity and connects to the certificate authority. It returns
// nil if no identity is configured.
func (p *Proxy) loadIdentity(ctx context.Context, m *meters.Meters) (*identity.Identity, error) {
	s := p.config.Settings.Identity
	if s == nil {
		return nil, nil //nolint:nilnil // no identity is configured
	}
	c, err := s.Load()
	if err != nil {
		return nil, err
	}
	// Certificates are requested with one unary call, whose limit is that of all such calls.
	c.Timeout = p.config.Control.DispatchTimeout
	c.Log = p.log
	c.Instruments = m.Identity()
	id, err := identity.New(c)
	if err != nil {
		return nil, err
	}
	// The connection exists before the first certificate, which is requested over it.
	conn, err := p.dial(ctx, authority, s.Controller, id, m)
	if err != nil {
		return nil, err
	}
	p.identity = &identityRun{id, conn}
	return id, nil
}

// run obtains the first certificate and renews it until ctx ends.
func (p *identityRun) run(ctx context.Context) error { return p.Run(ctx, p.authority) }
