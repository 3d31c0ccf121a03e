package main

import (
	"log/slog"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// responses counts what clients experience: every response by status, even without a route or to
// a malformed request, and also open connections and those that fail.
type responses struct {
	log      *slog.Logger
	statuses *prometheus.CounterVec // by listener, route, code and grpc_status
	errors   *prometheus.CounterVec // by listener and error
	open     *prometheus.GaugeVec   // by listener

	counters sync.Map // prometheus.Counter by responseLabels; saves looking up labels for each response

	mu     sync.Mutex
	routes map[string]bool // routes that may have series, and "" for requests without a route
}

// responseLabels identify a series of the metric gateway_responses_total.
type responseLabels struct {
	listener, route, grpc string
	status                int // 0 if it is not an HTTP status
}

// newResponses registers the metrics with r.
func newResponses(r prometheus.Registerer, log *slog.Logger) *responses {
	c := &responses{
		log: log, routes: map[string]bool{"": true},
		statuses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_responses_total",
			Help: "Responses to clients by status. 499 means that the client left before the response.",
		}, []string{"listener", "route", "code", "grpc_status"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_connection_errors_total",
			Help: "Connections of clients that failed, for example in the TLS handshake.",
		}, []string{"listener", "error"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gateway_open_connections", Help: "Open connections of clients.",
		}, []string{"listener"}),
	}
	r.MustRegister(c.statuses, c.errors, c.open)
	return c
}

// of returns a function that counts responses on the named listener.
func (c *responses) of(listener string) func(*httplayer.Report) {
	// The server calls the function after each response.
	return func(x *httplayer.Report) {
		labels := responseLabels{listener, x.Facts.Route, grpcLabel(httplayer.GRPCStatus(x)), x.Status}
		// Services can send any number as a status, and each would make a series.
		if x.Status < 100 || x.Status > 599 {
			labels.status = 0
		}
		// Usually the counter exists, which saves the lock and the look-up of labels.
		counter, ok := c.counters.Load(labels)
		if !ok {
			counter = c.counter(labels)
		}
		counter.(prometheus.Counter).Inc() //nolint:errcheck,forcetypeassert // the map has nothing else
	}
}

// removedRoute is the label for requests whose route was removed before they ended.
const removedRoute = "(removed)"

// grpcLabel returns the label for a gRPC status. A service can send any text as a status, so only
// standard ones get a label of their own; anything else would let it create series without limit.
func grpcLabel(status string) string {
	if status == "" {
		return "" // the usual case, for which the error of ParseUint would be allocated
	}
	n, err := strconv.ParseUint(status, 10, 8)
	// Without the second condition, "01" would be another spelling of a standard status.
	if err == nil && n <= 16 && (len(status) == 1 || status[0] == '1') {
		return status
	}
	return otherLabel
}

// otherLabel is the label for statuses that no standard defines.
const otherLabel = "other"

// counter creates and stores the counter for l. If l's route was removed meanwhile, it returns the
// counter for removed routes instead and does not store it, because keep would never drop it.
func (c *responses) counter(l responseLabels) prometheus.Counter {
	code := otherLabel
	if l.status > 0 {
		code = strconv.Itoa(l.status)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The route has been removed since the request was routed.
	if !c.routes[l.route] {
		return c.statuses.WithLabelValues(l.listener, removedRoute, code, l.grpc)
	}
	counter := c.statuses.WithLabelValues(l.listener, l.route, code, l.grpc)
	c.counters.Store(l, counter)
	return counter
}

// keep drops the counters for all routes except the given ones, and reports whether there were
// others before. The caller deletes their series.
func (c *responses) keep(routes map[string]bool) (removed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.routes {
		// A route that will have series no more was removed.
		removed = removed || !routes[name]
	}
	c.routes = routes
	if !removed {
		return false
	}
	// Counters of removed routes would otherwise keep their series alive.
	c.counters.Range(func(key, _ any) bool {
		if l, _ := key.(responseLabels); !routes[l.route] {
			c.counters.Delete(key)
		}
		return true
	})
	return true
}

// failed logs and counts a connection that ended with err.
func (c *responses) failed(listener string, err error) {
	c.log.Debug("connection failed", "listener", listener, "err", err)
	c.errors.WithLabelValues(listener, tcplayer.ErrorKind(err)).Inc()
}
