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

// tcpServer returns a function that makes the server for a TCP listener's connections, and the layer that
// logs, counts and shows each of them. The layer goes outside of all others, so that it has what they reject.
func (g *gateway) tcpServer(log *accessLog) func(*config.Listener) (tcplayer.Server, layer.Layer[net.Conn, tcplayer.ByteCount]) {
	return func(c *config.Listener) (tcplayer.Server, layer.Layer[net.Conn, tcplayer.ByteCount]) {
		watched := tap.Connections(g.tap, tap.Inbound,
			tap.WithDestination(netip.AddrPort{}, map[string]string{"listener": string(c.Name)}))
		routes := &tcpRoutes{watched(tcpBackends{g}), g, c.Name}
		explained := tap.ExplainConnections(g.tap)
		server := &tcpListener{
			Server:   explained(tcplayer.Forward(routes)),
			Listener: c, named: explained(tcplayer.Forward(routes, tcplayer.WithServerName(helloTimeout))), g: g,
		}
		return server, func(next tcplayer.Server) tcplayer.Server {
			return &tcpObserver{Server: next, listener: string(c.Name), watched: routes.Service, g: g, log: log}
		}
	}
}

// tcpObserver logs and counts each connection of a listener when it ends.
type tcpObserver struct {
	tcplayer.Server

	listener string
	watched  tcplayer.Service // tap and tcpBackends
	g        *gateway
	log      *accessLog
}

// Call serves a connection, and then logs and counts it. Only then are its bytes known.
func (o *tcpObserver) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	// The layers below find x in the context, and complete it.
	x := &tcpConnection{listener: o.listener, peer: peerOf(conn), began: time.Now()}
	ctx, record := layer.WithRecord(context.WithValue(ctx, tcpConnectionKey{}, x))
	x.bytes, x.err = o.Server.Call(ctx, conn)
	if x.err != nil && !x.routed {
		// A layer above the routes has rejected the connection. The tap shows the error that tcpBackends returns.
		x.decision.err = x.err
		_, _ = o.watched.Call(ctx, tcplayer.Request{Client: x.peer})
	}
	x.duration = time.Since(x.began)
	x.endpoint = record.Facts().Endpoint
	x.outcome = outcomeOf(ctx, x)
	o.g.ended.count(x)
	o.log.connection(x)
	return x.bytes, x.err
}

// tcpListener rejects connections by clientCIDRs. It reads a client's server name only if a route
// needs it, because in other protocols the client may wait for the server to send first.
type tcpListener struct {
	tcplayer.Server
	*config.Listener

	named tcplayer.Server // like Server, but reads the client's server name first
	g     *gateway
}

// Call forwards a connection.
func (l *tcpListener) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	x, _ := ctx.Value(tcpConnectionKey{}).(*tcpConnection)
	x.peer = peerOf(conn) // a header of the PROXY protocol may have replaced it
	// The order matters: a rejected connection must not be read from.
	switch c := l.ClientCIDRs; {
	case c != nil && !accepts(c, x.peer.Addr()):
		x.rejection = &layer.Error{Layer: outcomeDenied, Kind: layer.ErrNotReady, Reason: x.peer.Addr().String()}
		_ = conn.Close()
		return tcplayer.ByteCount{}, x.rejection
	case l.g.current.Load().NeedsServerName(l.Listener.Name):
		return l.named.Call(ctx, conn)
	}
	return l.Server.Call(ctx, conn)
}

// tcpRoute is a TCP route of a generation.
type tcpRoute struct {
	*config.TCPRoute

	shown *layer.Route // as tap shows it
}

// tcpDecision is a connection's route and the service that gets the connection, or the error that rejects
// it. It does not refer to the configuration, which a long connection would keep in memory.
type tcpDecision struct {
	route    *layer.Route
	service  config.Name
	upstream *upstream // the service
	err      error
}

// tcpRoutes connects to the services behind a listener's TCP routes.
type tcpRoutes struct {
	tcplayer.Service // tap and tcpBackends, once there is a decision

	g        *gateway
	listener config.Name
}

// Call stores in the client's tcpConnection the decision for the connection, which is the first route that
// matches, or a rejection if none does. The service below connects to a service of that route, or returns
// the rejection.
func (r *tcpRoutes) Call(ctx context.Context, req tcplayer.Request) (net.Conn, error) {
	x, _ := ctx.Value(tcpConnectionKey{}).(*tcpConnection)
	x.routed = true
	x.serverName = req.ServerName
	x.decision = r.decide(req.ServerName)
	name := ""
	if route := x.decision.route; route != nil {
		name = route.Name
		ctx = layer.WithRoute(ctx, route)
	}
	// Somebody watches connections with their explanations.
	if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
		explanation.Add(layer.Node{Name: "route", State: layer.State{
			{Key: "listener", Value: x.listener}, {Key: "server_name", Value: req.ServerName}, {Key: "route", Value: name},
		}})
	}
	conn, err := r.Service.Call(ctx, req)
	x.rejection = err
	return conn, err
}

// decide returns the decision for a connection with the given server name.
func (r *tcpRoutes) decide(serverName string) tcpDecision {
	c := r.g.current.Load()
	for i := range c.tcp {
		if route := c.tcp[i]; route.Matches(r.listener, config.Hostname(strings.ToLower(serverName))) {
			service := choose(route.BackendRefs)
			return tcpDecision{route: route.shown, service: service, upstream: c.services[service]}
		}
	}
	rejection := &layer.Error{Layer: "gateway", Target: serverName, Kind: layer.ErrNoRoute}
	if serverName == "" && c.NeedsServerName(r.listener) {
		rejection.Reason = "the client sent no server name (SNI)"
	}
	return tcpDecision{err: rejection}
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
	return b.g.tcp.Service(x.decision.upstream).Call(ctx, req)
}

// newTCPService returns the service that connects to the endpoints of s, as newService does for requests. If all
// endpoints have failed, a client loses its connection at once, and can try another gateway. A service with a direct
// response has no endpoints, so that it closes all connections.
func (g *gateway) newTCPService(ctx context.Context, s *upstream) tcplayer.Service {
	// Later changes of the settings arrive through Follow and setting.Layer below.
	c := s.settings.Get()
	if c.DirectResponse != nil {
		return layer.Func[tcplayer.Request, net.Conn](func(context.Context, tcplayer.Request) (net.Conn, error) {
			return nil, &layer.Error{Layer: outcomeDirectResponse, Target: string(c.Name), Kind: layer.ErrNotReady}
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
