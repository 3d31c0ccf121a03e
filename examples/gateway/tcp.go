package main

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/internal/setting"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// helloTimeout is how long a listener waits for a client's TLS server name, if a route needs it.
const helloTimeout = 10 * time.Second

// tcpServer returns a function that makes the server for a TCP listener's connections. The server
// writes a line to log for each connection.
func (g *gateway) tcpServer(log *accessLog) func(*config.Listener) tcplayer.Server {
	return func(c *config.Listener) tcplayer.Server {
		// The tap shows all connections of the listener, even those that no route accepts.
		watched := tap.Connections(g.tap, tap.Inbound,
			tap.WithDestination(netip.AddrPort{}, map[string]string{"listener": string(c.Name)}))
		routes := &tcpRoutes{watched(tcpBackends{g}), g, c.Name}
		return &tcpListener{
			Server: tcplayer.Forward(routes), named: tcplayer.Forward(routes, tcplayer.WithServerName(helloTimeout)),
			Listener: c, routes: routes, log: log,
		}
	}
}

// tcpListener rejects connections by clientCIDRs. It reads a client's server name only if a route
// needs it, because in other protocols the client may wait for the server to send first.
type tcpListener struct {
	tcplayer.Server
	*config.Listener

	named  tcplayer.Server // like Server, but reads the client's server name first
	routes *tcpRoutes
	log    *accessLog
}

// Call forwards a connection, and then logs and counts it.
func (l *tcpListener) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	// The layers below find x in the context, and complete it.
	x := &tcpConnection{
		listener: string(l.Listener.Name), peer: conn.RemoteAddr().String(), client: addrOf(conn).String(), began: time.Now(),
	}
	ctx, record := layer.WithRecord(context.WithValue(ctx, tcpConnectionKey{}, x))
	var err error
	// The order matters: a rejected connection must not be read from.
	switch c := l.ClientCIDRs; {
	case c != nil && !accepts(c, addrOf(conn)):
		x.decision.err = &layer.Error{Layer: "client_cidrs", Kind: layer.ErrNotReady, Reason: x.client}
		// The call goes through the tap, so that it shows the rejection. tcpBackends returns x.decision.err.
		_, err = l.routes.Service.Call(ctx, tcplayer.Request{Client: netip.AddrPortFrom(addrOf(conn), 0)})
		_ = conn.Close()
	case l.routes.g.current.Load().NeedsServerName(l.Listener.Name):
		x.bytes, err = l.named.Call(ctx, conn)
	default:
		x.bytes, err = l.Server.Call(ctx, conn)
	}
	x.facts = record.Facts()
	x.err = err
	// The connection counts after its end, when its bytes are known.
	l.routes.g.ended.count(x, l.routes.g.current.Load())
	l.log.connection(x)
	return x.bytes, err
}

// tcpDecision is the name of a connection's route and the service that gets the connection, or the error
// that rejects it. It does not refer to the configuration, which a long connection would keep in memory.
type tcpDecision struct {
	route   config.Name
	service *upstream
	err     error
}

// tcpRoutes connects to the services behind a listener's TCP routes.
type tcpRoutes struct {
	tcplayer.Service // tap and tcpBackends, once there is a decision

	g        *gateway
	listener config.Name
}

// Call stores in the client's tcpConnection the decision for the connection: the first route that matches and
// one of its services, or a rejection if no route does. The service below connects to that service, or returns
// the rejection.
func (r *tcpRoutes) Call(ctx context.Context, req tcplayer.Request) (net.Conn, error) {
	x, _ := ctx.Value(tcpConnectionKey{}).(*tcpConnection)
	x.serverName = req.ServerName
	c := r.g.current.Load()
	x.decision = tcpDecision{err: &layer.Error{Layer: "gateway", Target: req.ServerName, Kind: layer.ErrNoRoute}}
	for i := range c.TCPRoutes {
		if route := &c.TCPRoutes[i]; route.Matches(r.listener, config.Hostname(strings.ToLower(req.ServerName))) {
			x.decision = tcpDecision{route: route.Name, service: c.services[choose(route.BackendRefs)]}
			ctx = layer.WithRoute(ctx, route.ProfileRoute())
			break
		}
	}
	return r.Service.Call(ctx, req)
}

// choose selects one of refs by weight.
func choose(refs []config.BackendRef) config.Name {
	total := 0
	for _, share := range refs {
		total += share.Weight
	}
	choice := 0
	n := rand.IntN(total)
	for ; n >= refs[choice].Weight; choice++ {
		n -= refs[choice].Weight
	}
	return refs[choice].Name
}

// tcpBackends connects to the service that was chosen for a connection.
type tcpBackends struct{ g *gateway }

func (tcpBackends) Ready(context.Context) error { return nil } // the connection decides about the service

// Call connects to the service. One that rejects the connection keeps its share, as for HTTP.
func (b tcpBackends) Call(ctx context.Context, req tcplayer.Request) (net.Conn, error) {
	x, _ := ctx.Value(tcpConnectionKey{}).(*tcpConnection)
	if x.decision.err != nil {
		return nil, x.decision.err
	}
	return b.g.tcp.Service(x.decision.service).Call(ctx, req)
}

// newTCPService returns the service that connects to the endpoints of s, as newService does for requests. If all
// endpoints have failed, a client loses its connection at once, and can try another gateway. A service with a direct
// response has no endpoints, so that it closes all connections.
func (g *gateway) newTCPService(ctx context.Context, s *upstream) tcplayer.Service {
	// Later changes of the settings arrive through Follow and setting.Layer below.
	c := s.settings.Get()
	if c.DirectResponse != nil {
		return layer.Func[tcplayer.Request, net.Conn](func(context.Context, tcplayer.Request) (net.Conn, error) {
			return nil, &layer.Error{Layer: "direct_response", Target: string(c.Name), Kind: layer.ErrNotReady}
		})
	}
	resolver, name, err := g.newResolver(ctx, s)
	// The service exists, but connections to it fail with err.
	if err != nil {
		g.log.Error("service without endpoints", "service", c.Name, "err", err)
		resolver = failed(err)
	}
	balancer := balance.Resolve(ctx, resolver, balance.Config{
		Target: name, FailFast: true, Metrics: g.metrics.Balance(string(c.Name)),
	}, g.newTCPEndpoint(c), balance.WithCompletion(tcplayer.UntilClosed))
	s.settings.Follow(ctx, func(now *config.Service) {
		if err := balancer.SetPolicy(policy(now)); err != nil {
			g.log.Error("the load balancer was not changed", "service", now.Name, "err", err)
		}
	})
	// The queue is built again after each change, around the same balancer.
	return setting.Layer(s.settings, func(now *config.Service) layer.Layer[tcplayer.Request, net.Conn] {
		return tcplayer.NewStack().WithTarget(string(now.Name)).
			Queue(now.Queue.Capacity, now.Queue.MaxWait.D()).
			Layer()
	})(balancer)
}

// newTCPEndpoint returns a function that makes a service that connects to one of c's endpoints.
func (g *gateway) newTCPEndpoint(c *config.Service) discover.MakeService[tcplayer.Request, net.Conn] {
	opts := []tcplayer.EndpointOption{tcplayer.WithConnectTimeout(c.ConnectTimeout.D())}
	if c.TLS != nil {
		opts = append(opts, tcplayer.WithTLS(c.TLS.Config()))
	}
	if p := c.ProxyProtocol; p != nil {
		opts = append(opts, tcplayer.WithProxyHeader(p.Number()))
	}
	// Clip makes append copy opts, which all endpoints share.
	connect := func(ctx context.Context, t discover.Target) tcplayer.Service {
		connOpts := opts
		if path, ok := t.Endpoint.Labels[socketLabel]; ok && c.Static != nil {
			connOpts = append(slices.Clip(connOpts), tcplayer.WithDialContext(dialSocket(path)))
		}
		return tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String(), connOpts...)
	}
	// The tap is outside of the health check, so that it does not show the checks.
	checked := connect
	if c.HealthCheck != nil {
		checked = discover.WithHealthCheck(connect, checkConnection, healthPolicy(c.HealthCheck))
	}
	return func(ctx context.Context, t discover.Target) tcplayer.Service {
		return tap.Connections(g.tap, tap.Outbound, tap.WithDestination(t.Endpoint.Addr, labelsOf(c, t.Endpoint)))(checked(ctx, t))
	}
}

// checkConnection connects as for a client, with TLS and PROXY protocol header if configured, and
// closes the connection.
func checkConnection(ctx context.Context, _ discover.Target, svc tcplayer.Service) error {
	conn, err := svc.Call(ctx, tcplayer.Request{})
	if err != nil {
		return err
	}
	return conn.Close()
}
