package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

type tcpConnectionKey struct{}

// tcpConnection describes a connection to a TCP listener for the access log and metrics. The layers through
// which it passes complete it.
type tcpConnection struct {
	listener   string
	peer       netip.AddrPort // the client; a header of the PROXY protocol replaces it
	serverName string         // that the client requested by TLS

	routed    bool // the connection was compared with the routes
	decision  tcpDecision
	rejection error          // of the listener, a route or a service, without which there would be a connection to an endpoint
	endpoint  netip.AddrPort // to which the service has connected

	began    time.Time
	duration time.Duration
	bytes    tcplayer.ByteCount
	err      error // why the connection was rejected or reset; nil if both sides closed it
	outcome  string
}

// route returns the name of x's route, or "".
func (x *tcpConnection) route() string {
	if x.decision.route == nil {
		return ""
	}
	return x.decision.route.Name
}

// These are the outcomes of connections to TCP listeners, as the access log and the metrics name them.
const (
	outcomeOK             = "ok"              // client and service closed the connection
	outcomeAborted        = "aborted"         // one of them reset it
	outcomeTimeout        = "timeout"         // one of them no longer acknowledged data or keep-alive probes
	outcomeShutdown       = "shutdown"        // the gateway ended
	outcomeNoRoute        = "no_route"        // for the listener and the server name
	outcomeNoEndpoint     = "no_endpoint"     // of the service was known, healthy or free
	outcomeConnectFailed  = "connect_failed"  // to the endpoints of the service, TLS included
	outcomeDirectResponse = "direct_response" // the service only responds to requests
	outcomeDenied         = "client_cidrs"    // of the listener
	outcomeLimited        = "max_connections" // of the listener
	outcomeProxyProtocol  = "proxy_protocol"  // the header of the load balancer was missing or malformed
)

// outcomeOf returns the outcome of x, which has ended. ctx is its context.
func outcomeOf(ctx context.Context, x *tcpConnection) string {
	rejection, _ := errors.AsType[*layer.Error](x.rejection)
	// The order matters, because an error may match several cases.
	switch {
	case x.err == nil:
		return outcomeOK
	case ctx.Err() != nil:
		return outcomeShutdown
	case rejection != nil && (rejection.Layer == outcomeDenied || rejection.Layer == outcomeDirectResponse):
		return rejection.Layer
	case !x.routed && errors.Is(x.err, layer.ErrNotReady):
		return outcomeLimited
	case !x.routed:
		return outcomeProxyProtocol
	case errors.Is(x.rejection, layer.ErrNoRoute):
		return outcomeNoRoute
	case failedEndpoint(x.rejection) != "":
		return outcomeConnectFailed
	case x.rejection != nil:
		return outcomeNoEndpoint
	case errors.Is(x.err, syscall.ETIMEDOUT), errors.Is(x.err, os.ErrDeadlineExceeded):
		return outcomeTimeout
	}
	return outcomeAborted
}

// failedEndpoint returns the address of the endpoint that caused err, or "" if none did.
func failedEndpoint(err error) string {
	for e := (*layer.Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Endpoint != "" {
			return e.Endpoint
		}
	}
	return ""
}

// connections counts the connections of TCP listeners that have ended.
type connections struct {
	ended    *prometheus.CounterVec   // by listener, route, service and outcome
	duration *prometheus.HistogramVec // by the same
	bytes    *prometheus.CounterVec   // by listener, route, service and direction

	series  sync.Map // *connectionSeries by connectionLabels; saves looking up labels for each connection
	loading *sync.Mutex
	current func() *generation
}

// connectionLabels identify a series of the metric gateway_tcp_connections_total.
type connectionLabels struct{ listener, route, service, outcome string }

// connectionSeries are the metrics for one set of labels.
type connectionSeries struct {
	ended          prometheus.Counter
	duration       prometheus.Observer
	sent, received prometheus.Counter
}

// newConnections returns the metrics, which it registers with r. current returns the configuration in use,
// which changes only while loading is held.
func newConnections(r prometheus.Registerer, loading *sync.Mutex, current func() *generation) *connections {
	labels := []string{"listener", "route", "service", "outcome"}
	c := &connections{
		loading: loading, current: current,
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_tcp_connections_total",
			Help: "Connections of TCP listeners that have ended by outcome, which is ok if client and service closed the connection.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gateway_tcp_connection_duration_seconds", Help: "Durations of connections of TCP listeners that have ended.",
			Buckets: []float64{.001, .01, .1, 1, 10, 60, 600, 3600, 86400},
		}, labels),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_tcp_bytes_total", Help: "Bytes of connections of TCP listeners that have ended.",
		}, []string{"listener", "route", "service", "direction"}),
	}
	r.MustRegister(c.ended, c.duration, c.bytes)
	return c
}

// count counts x after it has ended.
func (c *connections) count(x *tcpConnection) {
	labels := connectionLabels{x.listener, x.route(), string(x.decision.service), x.outcome}
	// Usually the series exist, which saves the lock and the look-up of labels.
	stored, ok := c.series.Load(labels)
	if !ok {
		stored = c.create(labels)
	}
	s := stored.(*connectionSeries) //nolint:errcheck,forcetypeassert // the map has nothing else
	s.ended.Inc()
	s.duration.Observe(x.duration.Seconds())
	s.sent.Add(float64(x.bytes.Sent))
	s.received.Add(float64(x.bytes.Received))
}

// create creates and stores the series for l. If l's route or service is no longer configured, it returns the
// series for [removedRoute] instead and does not store them, because [gateway.deleteSeries] would not drop them.
func (c *connections) create(l connectionLabels) *connectionSeries {
	c.loading.Lock()
	defer c.loading.Unlock()
	configured := c.current().measures(l)
	if !configured {
		l.route = removedRoute
		l.service = ""
	}
	s := &connectionSeries{
		ended:    c.ended.WithLabelValues(l.listener, l.route, l.service, l.outcome),
		duration: c.duration.WithLabelValues(l.listener, l.route, l.service, l.outcome),
		sent:     c.bytes.WithLabelValues(l.listener, l.route, l.service, "from_client"),
		received: c.bytes.WithLabelValues(l.listener, l.route, l.service, "to_client"),
	}
	if configured {
		c.series.Store(l, s)
	}
	return s
}

// keep drops the series of routes and services that g does not have. The caller deletes them.
func (c *connections) keep(g *generation) {
	c.series.Range(func(key, _ any) bool {
		if l, _ := key.(connectionLabels); !g.measures(l) {
			c.series.Delete(key)
		}
		return true
	})
}

// measures reports whether g has the TCP route and the service in l. "" stands for none.
func (g *generation) measures(l connectionLabels) bool {
	return (l.route == "" || slices.ContainsFunc(g.tcp, func(r tcpRoute) bool { return r.shown.Name == l.route })) &&
		(l.service == "" || g.services[config.Name(l.service)] != nil)
}

// connection writes a line for x, with the same fields as for requests where they apply; host is the TLS
// server name, and outcome replaces status, also in a selection of fields. Nothing is written in the common
// and combined formats, which only describe requests.
func (l *accessLog) connection(x *tcpConnection) {
	if !strings.HasPrefix(string(l.format), "json") {
		return
	}
	line := map[string]any{
		"timestamp": x.began.UTC().Format(time.RFC3339Nano), "client.addr": x.peer.String(), "client.ip": x.peer.Addr().String(),
		"version": "TCP", "request_bytes": x.bytes.Sent, "response_bytes": x.bytes.Received,
		"total_ns": x.duration.Nanoseconds(),
	}
	// Empty texts are left out of the line.
	texts := map[string]string{
		"host": x.serverName, "route": x.route(), "upstream": string(x.decision.service), "endpoint": failedEndpoint(x.rejection),
	}
	if x.endpoint.IsValid() {
		texts["endpoint"] = x.endpoint.String()
	}
	if x.err != nil {
		texts["error"] = x.err.Error()
	}
	for name, value := range texts {
		if value != "" {
			line[name] = value
		}
	}
	// The configured fields are a selection. Without any, the line has all of them.
	for name := range line {
		if len(l.fields) > 0 && !slices.Contains(l.fields, name) {
			delete(line, name)
		}
	}
	if len(l.fields) == 0 || slices.Contains(l.fields, "status") {
		line["outcome"] = x.outcome
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic("gateway: " + err.Error()) // maps of texts and numbers can be marshaled
	}
	_, _ = l.lines.Write(append(text, '\n'))
}
