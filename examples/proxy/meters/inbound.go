package meters

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// authzFamilies are the metrics of policy decisions.
type authzFamilies struct{ allowed, denied *family[prometheus.Counter] }

func (m *Meters) authzFamilies(protocol string) authzFamilies {
	return authzFamilies{
		allowed: m.counters("inbound_"+protocol+"_authz_allow_total", "Requests or connections that a policy allowed."),
		denied:  m.counters("inbound_"+protocol+"_authz_deny_total", "Requests or connections that a policy denied."),
	}
}

// Decision is the decision of a policy about a request or connection.
type Decision struct {
	Target  netip.AddrPort // original destination
	Client  Client
	Allowed bool
}

// Authz returns a function that counts the decisions of a default policy, such as
// "all-authenticated", for the protocol "http" or "tcp": inbound_http_authz_allow_total,
// inbound_http_authz_deny_total and their counterparts for TCP. For other protocols it
// returns nil. The labels are those of linkerd's proxy with a default policy: [Target],
// srv_*, authz_* if allowed, route_* of HTTP, and those of TLS as for [Client]. The labels
// target_*, srv_port and client_id are left out for pairs of target and client beyond the
// first thousand. The function is safe for concurrent use.
func (m *Meters) Authz(protocol, policy string) func(Decision) {
	f, ok := m.authz[protocol]
	if !ok {
		return nil
	}
	route := Labels{}
	if protocol == "http" {
		route = byDefault("route", "default")
	}
	counts := newLookup(func(d Decision) *handle[prometheus.Counter] {
		labels := Server(policy, d.Target).With(route).With(Target(d.Target)).With(d.Client.Labels())
		rest := Server(policy, netip.AddrPort{}).With(route).With(d.Client.anonymous().Labels())
		l, counted := m.limited("authz "+protocol, labels.key(), labels, rest), f.denied
		if d.Allowed {
			l, counted = l.with(byDefault("authz", policy)), f.allowed
		}
		return counted.lazy(l)
	})
	return func(d Decision) { counts.of(d).get().Inc() }
}

// Server returns the labels srv_group, srv_kind and srv_name of a default policy, such as
// "all-authenticated", and srv_port if target is valid.
func Server(policy string, target netip.AddrPort) Labels {
	labels := byDefault("srv", policy)
	if target.IsValid() {
		labels["srv_port"] = strconv.Itoa(int(target.Port()))
	}
	return labels
}

// Allowed returns the labels of requests that a default policy allowed: those of
// [Server], route_* and authz_*.
func Allowed(policy string, target netip.AddrPort) Labels {
	return Server(policy, target).With(byDefault("route", "default")).With(byDefault("authz", policy))
}

// byDefault returns the labels of a default resource, as in linkerd's proxy without a
// policy.
func byDefault(prefix, name string) Labels {
	return Prefixed(prefix, Labels{"group": "", "kind": "default", "name": name})
}

// inboundRouteFamilies are inbound_http_* of the requests that a policy allowed.
type inboundRouteFamilies struct {
	requests, statuses *family[prometheus.Counter]
	request, response  *family[prometheus.Histogram]
}

func (m *Meters) inboundRouteFamilies() inboundRouteFamilies {
	const name = "inbound_http_"
	return inboundRouteFamilies{
		requests: m.counters(name+"requests_total", "The total number of requests dispatched"),
		statuses: m.counters(name+"statuses_total", "Completed HTTP responses"),
		request: m.histograms(name+"request_duration_seconds",
			"The time between request initialization and response completion", 0.025, 0.05, 0.1, 0.25, 0.5, 1, 10),
		response: m.histograms(name+"response_duration_seconds",
			"The time between request completion and response completion", 0.05, 0.5, 1, 10),
	}
}

// InboundRoute is a layer that counts the requests to a port of the application that
// a default policy, such as "all-authenticated", allowed: inbound_http_requests_total,
// inbound_http_statuses_total, inbound_http_request_duration_seconds and
// inbound_http_response_duration_seconds. The labels are parent_*, which is the
// policy with the port of target, and route_*, which is the default route. Ports beyond
// the first thousand have no parent_port. Statuses have status, which is absent if there
// was no response.
//
// Admission: Ready is forwarded. A rejection counts as a request.
//
// Cancellation and errors: forwarded.
//
// Body: a response ends with its body, trailers included; a request ends when its
// body was read to the end or closed.
//
// Cost: two clock readings and two allocations; with a request body one reading and
// two allocations more.
func (m *Meters) InboundRoute(policy string, target netip.AddrPort) Layer {
	rest := byDefault("parent", policy).With(byDefault("route", "default"))
	port := strconv.Itoa(int(target.Port()))
	l, f := m.limited("inbound ports", port, rest.With(Labels{"parent_port": port}), rest), m.inboundRoutes
	s := &inboundRoute{
		requests: f.requests.now(l), request: f.request.now(l), response: f.response.now(l),
		statuses: newByLabel(func(status int) *handle[prometheus.Counter] {
			return f.statuses.lazy(l.with(Labels{"status": statusLabel(status)}))
		}),
	}
	return func(next httplayer.Service) httplayer.Service { return &inboundRouteMeter{next, s} }
}

// inboundRoute is the series of one port.
type inboundRoute struct {
	requests          *handle[prometheus.Counter]
	request, response *handle[prometheus.Histogram]

	statuses *byLabel[int, *handle[prometheus.Counter]] // by status; 0: there was no response
}

type inboundRouteMeter struct {
	httplayer.Service
	*inboundRoute
}

func (m *inboundRouteMeter) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	m.requests.get().Inc()
	e := &inboundExchange{inboundRoute: m.inboundRoute, start: time.Now()}
	if req.Body != nil && req.Body != http.NoBody && req.Method != http.MethodConnect {
		observed := *req
		observed.Body = layer.ObserveBody(context.Background(), req.Body, &e.sent)
		req = &observed
	}
	ended := false
	defer func() {
		if !ended { // an error, a panic or Goexit
			e.End(nil)
		}
	}()
	rsp, err := m.Service.Call(ctx, req)
	if err != nil {
		return rsp, err
	}
	ended = true
	e.code = httpStatus(rsp.StatusCode)
	return httplayer.Completion(ctx, rsp, e), nil
}

func (m *inboundRouteMeter) Next() httplayer.Service { return m.Service }

func (m *inboundRouteMeter) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// inboundExchange records one request. It is also the Observer of the response.
type inboundExchange struct {
	*inboundRoute
	start time.Time
	sent  bodyEnd
	code  int // of the response; 0: there was no response
}

// bodyEnd records when the request body ended.
type bodyEnd struct{ at atomic.Int64 } // in Unix nanoseconds; 0: it has not ended, or there is no body

func (*bodyEnd) Data(int) {}

func (b *bodyEnd) End(error) { b.at.Store(time.Now().UnixNano()) }

// Data does nothing.
func (*inboundExchange) Data(int) {}

// End records the request.
func (e *inboundExchange) End(error) {
	took := time.Since(e.start)
	e.request.get().Observe(took.Seconds())
	if at := e.sent.at.Load(); at != 0 {
		took = max(0, min(took, time.Since(time.Unix(0, at))))
	}
	e.response.get().Observe(took.Seconds())
	e.statuses.of(e.code).get().Inc()
}
