package meters

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

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
// policy with the port of target, and route_*, which is the default route. Statuses
// have status, which is absent if there was no response. The series are shown until a
// while after ctx, and after the last request ended.
//
// Admission: none of its own; Ready is forwarded. A refusal counts as a request.
//
// Cancellation and errors: passed on as they are.
//
// Body: a response ends with its body, trailers included; a request ends when its
// body was read to the end or closed.
//
// Cost: two clock readings and two allocations; with a request body one reading and
// two allocations more.
func (m *Meters) InboundRoute(ctx context.Context, policy string, target netip.AddrPort) Layer {
	labels := byDefault("parent", policy).With(byDefault("route", "default"))
	labels["parent_port"] = strconv.Itoa(int(target.Port()))
	l, f := m.seriesLease(ctx), m.inboundRoutes
	s := &inboundRoute{
		seriesLease: l, requests: f.requests.bind(l, labels),
		request: f.request.bind(l, labels), response: f.response.bind(l, labels),
		bindStatus: func(status string) prometheus.Counter {
			return f.statuses.bind(l, labels.With(Labels{"status": status}))
		},
	}
	return func(next httplayer.Service) httplayer.Service { return &inboundRouteMeter{next, s} }
}

// inboundRoute is the series of one port.
type inboundRoute struct {
	seriesLease       *seriesLease
	requests          prometheus.Counter
	request, response prometheus.Histogram

	bindStatus func(string) prometheus.Counter
	last       atomic.Pointer[statusCounter] // most responses have the status of the one before
	statuses   sync.Map                      // status → *statusCounter
}

type statusCounter struct {
	status int // 0: there was no response
	prometheus.Counter
}

func (s *inboundRoute) status(status int) prometheus.Counter {
	if c := s.last.Load(); c != nil && c.status == status {
		return c
	}
	found, ok := s.statuses.Load(status)
	if !ok {
		text := ""
		if status != 0 {
			text = strconv.Itoa(status)
		}
		found, _ = s.statuses.LoadOrStore(status, &statusCounter{status, s.bindStatus(text)})
	}
	c := found.(*statusCounter) //nolint:errcheck,forcetypeassert // stored above
	s.last.Store(c)
	return c
}

type inboundRouteMeter struct {
	httplayer.Service
	*inboundRoute
}

func (m *inboundRouteMeter) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	m.seriesLease.hold()
	m.requests.Inc()
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
	e.code = rsp.StatusCode
	return httplayer.Completion(ctx, rsp, e), nil
}

func (m *inboundRouteMeter) Next() httplayer.Service { return m.Service }

func (m *inboundRouteMeter) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// inboundExchange is one request, and the Observer of its response.
type inboundExchange struct {
	*inboundRoute
	start time.Time
	sent  bodyEnd
	code  int // of the response; 0 if there was none
}

// bodyEnd observes when a request body ended.
type bodyEnd struct{ at atomic.Int64 } // in Unix nanoseconds; 0 if it has not, or there is none

func (*bodyEnd) Data(int) {}

func (b *bodyEnd) End(error) { b.at.Store(time.Now().UnixNano()) }

// Data does nothing.
func (*inboundExchange) Data(int) {}

// End records the request.
func (e *inboundExchange) End(error) {
	took := time.Since(e.start)
	e.request.Observe(took.Seconds())
	if at := e.sent.at.Load(); at != 0 {
		took = max(0, min(took, time.Since(time.Unix(0, at))))
	}
	e.response.Observe(took.Seconds())
	e.status(e.code).Inc()
	e.seriesLease.release()
}
