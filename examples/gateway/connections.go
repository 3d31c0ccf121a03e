package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

type tcpConnectionKey struct{}

// tcpConnection describes a connection to a TCP listener for the access log and metrics.
type tcpConnection struct {
	listener, peer, client, serverName string // peer has the port of the client

	began    time.Time
	decision tcpDecision
	bytes    tcplayer.ByteCount
	facts    layer.Facts // service and endpoint
	err      error       // why the connection was rejected or reset; nil if both sides closed it
}

// connections counts the connections that TCP routes forward or reject.
type connections struct {
	ended *prometheus.CounterVec // by listener, route and error
	bytes *prometheus.CounterVec // by listener, route and direction
}

// newConnections returns the counters, which it registers with r.
func newConnections(r prometheus.Registerer) connections {
	c := connections{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_tcp_connections_total",
			Help: "Connections of TCP routes that have ended by error, which is empty if client and service closed the connection.",
		}, []string{"listener", "route", "error"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_tcp_bytes_total", Help: "Bytes of connections of TCP routes that have ended.",
		}, []string{"listener", "route", "direction"}),
	}
	r.MustRegister(c.ended, c.bytes)
	return c
}

// count counts x after it has ended. If its route is no longer configured, the route's series
// have been deleted, and x is counted under [removedRoute].
func (c connections) count(x *tcpConnection, current *generation) {
	// A rejected connection has no route.
	route := string(x.decision.route)
	// removedRoute keeps the number of series limited, whatever routes existed before.
	if route != "" && !slices.ContainsFunc(current.TCPRoutes, func(r config.TCPRoute) bool { return r.Name == x.decision.route }) {
		route = removedRoute
	}
	c.ended.WithLabelValues(x.listener, route, x.errorKind()).Inc()
	c.bytes.WithLabelValues(x.listener, route, "from_client").Add(float64(x.bytes.Sent))
	c.bytes.WithLabelValues(x.listener, route, "to_client").Add(float64(x.bytes.Received))
}

// errorKind returns a short reason why x ended, or "" if client and service closed it.
func (x *tcpConnection) errorKind() string {
	rejection, ok := errors.AsType[*layer.Error](x.err)
	switch {
	case ok && (rejection.Layer == "client_cidrs" || rejection.Layer == "direct_response"):
		return rejection.Layer
	case errors.Is(x.err, layer.ErrNoRoute):
		return "no route"
	}
	return tcplayer.ErrorKind(x.err)
}

// connection writes a line for x, with the same fields as for requests where they apply; host is
// the TLS server name. It writes nothing in the common and combined formats, which only describe
// requests.
func (l *accessLog) connection(x *tcpConnection) {
	if !strings.HasPrefix(string(l.format), "json") {
		return
	}
	line := map[string]any{
		"timestamp": x.began.UTC().Format(time.RFC3339Nano), "client.addr": x.peer, "client.ip": x.client, "version": "TCP",
		"request_bytes": x.bytes.Sent, "response_bytes": x.bytes.Received, "total_ns": time.Since(x.began).Nanoseconds(),
	}
	// Empty texts are left out of the line.
	texts := map[string]string{"host": x.serverName, "route": x.facts.Route, "upstream": x.facts.Target}
	if x.facts.Endpoint.IsValid() {
		texts["endpoint"] = x.facts.Endpoint.String()
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
	text, err := json.Marshal(line)
	if err != nil {
		panic("gateway: " + err.Error()) // maps of texts and numbers can be marshaled
	}
	_, _ = l.lines.Write(append(text, '\n'))
}
