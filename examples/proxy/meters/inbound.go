package meters

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// authzFamilies has the metrics of policy decisions for one protocol, either HTTP or TCP,
// by outcome.
type authzFamilies map[Outcome]*family[*counterValue]

func (m *Meters) authzFamilies(protocol string) authzFamilies {
	name := "inbound_" + protocol
	f := authzFamilies{
		Allowed: m.counters(name+"_authz_allow_total", "Requests or connections that a policy allowed."),
		Denied:  m.counters(name+"_authz_deny_total", "Requests or connections that a policy denied."),
	}
	if protocol == "tcp" {
		f[Terminated] = m.counters(name+"_authz_terminate_total", "Connections that a changed policy closed.")
		return f
	}
	f[NoRoute] = m.counters(name+"_route_not_found_total", "Requests without a route in the policy.")
	f[RateLimited] = m.counters(name+"_local_ratelimit_total", "Requests that a rate limit of the policy rejected.")
	return f
}

// Resource identifies a resource of the policy controller, such as a server or a route. A
// resource that is a default of the proxy has the kind "default".
type Resource struct{ Group, Kind, Name string }

// DefaultResource returns the Resource with the kind "default" and the given name. It
// identifies a default of the proxy, such as the policy "all-authenticated".
func DefaultResource(name string) Resource { return Resource{Kind: "default", Name: name} }

// labels returns three labels of metrics. Their names are prefix followed by "_group",
// "_kind" and "_name".
func (r Resource) labels(prefix string) Labels {
	return Prefixed(prefix, Labels{"group": r.Group, "kind": r.Kind, "name": r.Name})
}

// Permit identifies the resources that decided about a request or connection: the server,
// the route, the authorization and the rate limit. A connection has no route.
type Permit struct {
	Server, Route, Authz, RateLimit Resource

	Scope string // of the rate limit: "total" or "identity"
}

// Outcome is the decision of a policy about a request or connection. NoRoute and RateLimited
// are for requests, and Terminated is for connections.
type Outcome uint8

// The outcomes.
const (
	Denied Outcome = iota
	Allowed
	NoRoute     // no route matches the request
	RateLimited // the rate limit rejects the request
	Terminated  // the connection was closed, because the policy changed
)

// Decision describes what a policy decided about one request or connection.
type Decision struct {
	Target  netip.AddrPort // original destination of the connection
	Client  Client
	Permit  *Permit // must not be modified later; nil: no resource decided
	Outcome Outcome
}

// Authz returns a function that counts the decisions of policies for a protocol, "http" or
// "tcp". It returns nil for any other protocol. The metrics for "http" are
// inbound_http_authz_allow_total, inbound_http_authz_deny_total,
// inbound_http_route_not_found_total and inbound_http_local_ratelimit_total. The metrics
// for "tcp" are inbound_tcp_authz_allow_total, inbound_tcp_authz_deny_total and
// inbound_tcp_authz_terminate_total.
//
// All decisions have the labels of [Target], [Server] and [Client.Labels]. Allowed and
// denied requests also have the labels route_* of the route. Allowed requests and
// connections have the labels authz_* of the authorization. Requests that a rate limit
// rejects have the labels ratelimit_* of the limit. After a thousand different sets of
// labels, further decisions have no target_*, srv_port and client_id. The function is safe
// for concurrent use.
func (m *Meters) Authz(protocol string) func(Decision) {
	f, ok := m.authz[protocol]
	if !ok {
		return nil
	}
	counts := newLookup(func(d Decision) *handle[*counterValue] {
		if d.Permit == nil {
			d.Permit = new(Permit)
		}
		by := Labels{}
		if protocol == "http" && (d.Outcome == Allowed || d.Outcome == Denied) {
			by = d.Permit.Route.labels("route")
		}
		labels := Server(d.Permit.Server, d.Target).With(by).With(Target(d.Target)).With(d.Client.Labels())
		rest := Server(d.Permit.Server, netip.AddrPort{}).With(by).With(d.Client.anonymous().Labels())
		l := m.limited("authz "+protocol, labels.key(), labels, func(Labels) labelSet { return fixed(rest) })
		switch d.Outcome {
		case Allowed:
			l = l.with(d.Permit.Authz.labels("authz"))
		case RateLimited:
			l = l.with(d.Permit.RateLimit.labels("ratelimit").With(Labels{"ratelimit_scope": d.Permit.Scope}))
		case Denied, NoRoute, Terminated:
		}
		return f[d.Outcome].lazy(l)
	})
	return func(d Decision) { counts.of(d).get().Inc() }
}

// Server returns the labels srv_group, srv_kind and srv_name, which identify the given
// resource. This resource specifies the policy of a port. If target is valid, the result
// also has the label srv_port, the port of target.
func Server(server Resource, target netip.AddrPort) Labels {
	labels := server.labels("srv")
	if target.IsValid() {
		labels["srv_port"] = strconv.Itoa(int(target.Port()))
	}
	return labels
}

// Labels returns the labels of an allowed request to target: srv_*, route_* and authz_*,
// and also srv_port if target is valid.
func (p Permit) Labels(target netip.AddrPort) Labels {
	return Server(p.Server, target).With(p.Route.labels("route")).With(p.Authz.labels("authz"))
}

// inboundRouteFamilies has the metrics of inbound requests that a policy allowed.
type inboundRouteFamilies struct {
	requests, statuses *family[*counterValue]
	request, response  *family[*histogramValue]
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

// InboundRoute returns a layer that counts the requests to target that the resources in p
// allowed. target is a port of the application. The metrics are
// inbound_http_requests_total, inbound_http_statuses_total,
// inbound_http_request_duration_seconds and inbound_http_response_duration_seconds.
//
// The labels parent_* identify the policy and the port, and route_* identify the route.
// After a thousand different sets of these labels, further series have no parent_port. The
// label status has the status of the response. It is missing if there was no response.
//
// Admission: Ready is forwarded. A rejection counts as a request.
//
// Cancellation and errors: forwarded.
//
// Body: a response ends with its body and trailers. A request ends when its body has been
// read to the end or closed.
//
// Cost: two clock readings and two allocations. A request body adds one reading and two
// allocations.
func (m *Meters) InboundRoute(p Permit, target netip.AddrPort) Layer {
	rest := p.Server.labels("parent").With(p.Route.labels("route"))
	port := strconv.Itoa(int(target.Port()))
	f := m.inboundRoutes
	l := m.limited("inbound ports", port+rest.key(), rest.With(Labels{"parent_port": port}), func(Labels) labelSet { return fixed(rest) })
	s := &inboundRoute{
		requests: f.requests.now(l), request: f.request.now(l), response: f.response.now(l),
		statuses: newByLabel(func(status int) *handle[*counterValue] {
			return f.statuses.lazy(l.with(Labels{"status": statusLabel(status)}))
		}),
	}
	return func(next httplayer.Service) httplayer.Service { return &inboundRouteMeter{measured{next}, s} }
}

// inboundRoute has the series of the requests to one port of the application. All these
// requests have the same [Permit].
type inboundRoute struct {
	requests          *handle[*counterValue]
	request, response *handle[*histogramValue]

	statuses *byLabel[int, *handle[*counterValue]] // by status; 0: there was no response
}

// inboundRouteMeter is a service that counts permitted requests.
type inboundRouteMeter struct {
	measured
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

// inboundExchange records the durations and the status of one request. It is the observer
// of the response body.
type inboundExchange struct {
	*inboundRoute
	start time.Time
	sent  bodyEnd
	code  int // of the response; 0: there was no response
}

// bodyEnd is the observer of a request body. It records when the body ended.
type bodyEnd struct{ at atomic.Int64 } // in Unix nanoseconds; 0: not ended, or the request has no body

func (*bodyEnd) Data(int) {}

func (b *bodyEnd) End(error) { b.at.Store(time.Now().UnixNano()) }

// Data is part of [layer.Observer]. It has no effect.
func (*inboundExchange) Data(int) {}

// End is part of [layer.Observer]. It records the request when the response has ended.
func (e *inboundExchange) End(error) {
	took := time.Since(e.start)
	e.request.get().Observe(took.Seconds())
	if at := e.sent.at.Load(); at != 0 {
		took = max(0, min(took, time.Since(time.Unix(0, at))))
	}
	e.response.get().Observe(took.Seconds())
	e.statuses.of(e.code).get().Inc()
}
