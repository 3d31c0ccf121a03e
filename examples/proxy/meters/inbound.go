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
	"github.com/gotower/gotower/layer/tcplayer"
)

// authzFamilies contains the metrics of policy decisions for HTTP or TCP, by outcome.
type authzFamilies map[Outcome]*family[*counterValue]

// authzFamilies makes the metrics for the decisions of policies. protocol is "http" or "tcp".
func (m *Meters) authzFamilies(protocol string) authzFamilies {
	name := "inbound_" + protocol
	f := authzFamilies{
		Allowed: m.counters(name+"_authz_allow_total", "Requests or connections that a policy allowed."),
		Denied:  m.counters(name+"_authz_deny_total", "Requests or connections that a policy denied."),
	}
	// Requests are checked one by one, so only connections can be closed by a change.
	if protocol == "tcp" {
		f[Terminated] = m.counters(name+"_authz_terminate_total", "Connections that a changed policy closed.")
		return f
	}
	f[NoRoute] = m.counters(name+"_route_not_found_total", "Requests without a route in the policy.")
	f[RateLimited] = m.counters(name+"_local_ratelimit_total", "Requests that a rate limit of the policy rejected.")
	return f
}

// Resource identifies a resource in the policy controller, such as a server or route. The proxy's
// defaults have the kind "default".
type Resource struct{ Group, Kind, Name string }

// DefaultResource returns the Resource for one of the proxy's defaults, such as the policy
// "all-authenticated".
func DefaultResource(name string) Resource { return Resource{Kind: "default", Name: name} }

// labels returns the labels prefix_group, prefix_kind and prefix_name.
func (r Resource) labels(prefix string) Labels {
	return Prefixed(prefix, Labels{"group": r.Group, "kind": r.Kind, "name": r.Name})
}

// Permit identifies the resources that decided about a request or connection. Connections have no
// route.
type Permit struct {
	Server, Route, Authz, RateLimit Resource

	Scope string // the rate limit's scope: "total" or "identity"
}

// Outcome is a policy's decision about a request or connection. NoRoute and RateLimited only occur
// for requests, and Terminated only for connections.
type Outcome uint8

// Outcomes of a decision.
const (
	Denied Outcome = iota
	Allowed
	NoRoute     // no route matches the request
	RateLimited // the rate limit rejects the request
	Terminated  // the policy changed and closed the connection
)

// Decision describes a policy's decision about one request or connection.
type Decision struct {
	Target  netip.AddrPort // the connection's original destination
	Client  Client
	Permit  *Permit // must not be modified later; nil: no resource decided
	Outcome Outcome
}

// Authz returns a function that counts policy decisions for a protocol, "http" or "tcp". It returns
// nil for any other protocol. The metrics for "http" are inbound_http_authz_allow_total,
// inbound_http_authz_deny_total, inbound_http_route_not_found_total and
// inbound_http_local_ratelimit_total. Those for "tcp" are inbound_tcp_authz_allow_total,
// inbound_tcp_authz_deny_total and inbound_tcp_authz_terminate_total.
//
// All decisions have the labels of [Target], [Server] and [Client.Labels]. The labels route_* are
// added for allowed and denied requests, authz_* for allowed requests and connections, and
// ratelimit_* for requests that a rate limit rejects. After a thousand different sets of labels,
// further decisions lack target_*, srv_port and client_id. The function is safe for concurrent use.
func (m *Meters) Authz(protocol string) func(Decision) {
	f, ok := m.authz[protocol]
	if !ok {
		return nil
	}
	// The labels are built once for each different decision.
	counts := newLookup(func(d Decision) *handle[*counterValue] {
		if d.Permit == nil {
			d.Permit = new(Permit)
		}
		// Which resources become labels depends on the outcome: the rule only if it permitted, the limit only if it
		// rejected.
		route := Labels{}
		if protocol == "http" && (d.Outcome == Allowed || d.Outcome == Denied) {
			route = d.Permit.Route.labels("route")
		}
		labels := Server(d.Permit.Server, d.Target).With(route).With(Target(d.Target)).With(d.Client.Labels())
		// Clients choose ports and identities. Beyond the limit, decisions are counted without them.
		rest := Server(d.Permit.Server, netip.AddrPort{}).With(route).With(d.Client.anonymous().Labels())
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
	return func(d Decision) { counts.get(d).get().Inc() }
}

// Server returns the labels srv_group, srv_kind and srv_name for server, the resource that
// specifies a port's policy. If target is valid, it adds the port as srv_port.
func Server(server Resource, target netip.AddrPort) Labels {
	labels := server.labels("srv")
	if target.IsValid() {
		labels["srv_port"] = strconv.Itoa(int(target.Port()))
	}
	return labels
}

// Labels returns the labels for an allowed request to target: srv_*, route_* and authz_*, and
// srv_port if target is valid.
func (p Permit) Labels(target netip.AddrPort) Labels {
	return Server(p.Server, target).With(p.Route.labels("route")).With(p.Authz.labels("authz"))
}

// TransportHeaders returns a function that counts connections from other proxies that begin with a
// transport header, in inbound_tcp_transport_header_connections_total. The labels are
// session_protocol ("http/1", "http/2", or "" for bytes), target_port, target_name, and the
// client's identity as client_id. After a thousand different sets of labels, further connections
// only have session_protocol. The function is safe for concurrent use.
func (m *Meters) TransportHeaders() func(h tcplayer.TransportHeader, clientID string) {
	type key struct {
		header   tcplayer.TransportHeader
		clientID string
	}
	counts := newLookup(func(k key) *handle[*counterValue] {
		// An opaque connection is in neither entry and has the empty protocol.
		names := map[tcplayer.Protocol]string{tcplayer.HTTP1: "http/1", tcplayer.HTTP2: "http/2"}
		protocol := Labels{"session_protocol": names[k.header.Protocol]}
		labels := protocol.With(Labels{
			"target_port": strconv.Itoa(int(k.header.Port)), "target_name": k.header.Name, "client_id": k.clientID,
		})
		rest := func(Labels) labelSet { return fixed(protocol) }
		return m.transportHeaders.lazy(m.limited("transport headers", labels.key(), labels, rest))
	})
	return func(h tcplayer.TransportHeader, clientID string) { counts.get(key{h, clientID}).get().Inc() }
}

// inboundRouteFamilies contains the metrics of inbound requests that a policy allowed.
type inboundRouteFamilies struct {
	requests, statuses *family[*counterValue]
	request, response  *family[*histogramValue] // from the begin and from the end of the request to the response's end
}

// inboundRouteFamilies makes the metrics for the routes of inbound policies.
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

// InboundRoute returns a layer that counts requests to target, a port of the application, that p's
// resources allowed. The metrics are inbound_http_requests_total, inbound_http_statuses_total,
// inbound_http_request_duration_seconds and inbound_http_response_duration_seconds.
//
// The labels parent_* identify the policy and the port, and route_* the route. After a thousand
// different sets of labels, further series lack parent_port. The label status is the response's
// status. It is missing if there was no response.
//
// Admission: Ready is forwarded. A rejection counts as a request.
//
// Cancellation and errors: forwarded.
//
// Body: a response ends with its body and trailers. A request ends when its body has been read to
// the end or closed.
//
// Cost: two clock readings and two allocations, and one more reading and two more allocations for a
// request body.
func (m *Meters) InboundRoute(p Permit, target netip.AddrPort) Layer {
	rest := p.Server.labels("parent").With(p.Route.labels("route"))
	port := strconv.Itoa(int(target.Port()))
	f := m.inboundRoutes
	// Clients may choose the port. Beyond the limit, requests are counted without it.
	l := m.limited("inbound ports", port+rest.key(), rest.With(Labels{"parent_port": port}), func(Labels) labelSet { return fixed(rest) })
	// eager series are exported with the value 0, so that a rate is correct from the first request on.
	s := &inboundRoute{
		requests: f.requests.eager(l), request: f.request.eager(l), response: f.response.eager(l),
		// A status is only exported after a response had it.
		statuses: newByLabel(func(status int) *handle[*counterValue] {
			return f.statuses.lazy(l.with(Labels{"status": statusLabel(status)}))
		}),
	}
	return func(next httplayer.Service) httplayer.Service { return &inboundRouteMeter{measured{next}, s} }
}

// inboundRoute contains the series for requests to one port with the same [Permit].
type inboundRoute struct {
	requests          *handle[*counterValue]
	request, response *handle[*histogramValue] // durations until the end of the response, see inboundRouteFamilies

	statuses *byLabel[int, *handle[*counterValue]] // by status; 0: no response
}

// inboundRouteMeter counts permitted requests.
type inboundRouteMeter struct {
	measured
	*inboundRoute
}

// Call counts the request. It observes the response, so that e records the request's durations and
// status when the response has ended.
func (m *inboundRouteMeter) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	m.requests.get().Inc()
	e := &inboundExchange{inboundRoute: m.inboundRoute, start: time.Now()}
	if req.Body != nil && req.Body != http.NoBody && req.Method != http.MethodConnect { // the body of CONNECT is a tunnel
		observed := *req
		// ctx is not passed here, because its end does not mean that the body was sent.
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

// inboundExchange records one request's durations and status. It observes the response body.
type inboundExchange struct {
	*inboundRoute
	start time.Time
	sent  bodyEnd
	code  int // the response's status; 0: no response
}

// bodyEnd observes a request body, and records when it ended.
type bodyEnd struct{ time atomic.Int64 } // in Unix nanoseconds; 0: not ended, or no body

func (*bodyEnd) Data(int) {}

func (b *bodyEnd) End(error) { b.time.Store(time.Now().UnixNano()) }

// Data implements [layer.Observer]. It does nothing.
func (*inboundExchange) Data(int) {}

// End implements [layer.Observer]. It records the request when the response has ended.
func (e *inboundExchange) End(error) {
	duration := time.Since(e.start)
	e.request.get().Observe(duration.Seconds())
	// The response's time counts from the end of the request's body, if that has ended. Clocks may step, so it is
	// limited to the whole duration.
	if sent := e.sent.time.Load(); sent != 0 {
		duration = max(0, min(duration, time.Since(time.Unix(0, sent))))
	}
	e.response.get().Observe(duration.Seconds())
	e.statuses.get(e.code).get().Inc()
}
