package meters

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// Layer is a layer of requests by net/http.
type Layer = layer.Layer[*http.Request, *http.Response]

// requestFamilies are what there is of requests to endpoints, or to
// controllers.
type requestFamilies struct {
	requests, responses, refusals *family[prometheus.Counter]
	inFlight                      *family[prometheus.Gauge]
	latency                       *family[prometheus.Histogram]
}

func (m *Meters) requestFamilies(prefix string) requestFamilies {
	return requestFamilies{
		requests:  m.counters(prefix+"request_total", "Total count of HTTP requests."),
		responses: m.counters(prefix+"response_total", "Total count of HTTP responses."),
		refusals:  m.counters(prefix+"refusal_total", "Requests that were refused below, untouched."),
		inFlight:  m.gauges(prefix+"requests_in_flight", "Requests that have not ended."),
		latency: m.histograms(prefix+"response_latency_ms",
			"Elapsed times between a request's headers being received and its response stream completing", latencyBuckets()...),
	}
}

// Endpoint is a layer that counts what goes through: request_total,
// response_total and response_latency_ms, with these labels and, of responses,
// status_code, classification and, where there is one, grpc_status or error.
// A request counts in request_total once its response began, or failed to: until
// then it is in requests_in_flight alone. Give it authority, [Target], one of
// [ServerTLS], [ClientTLS] and [NoTLS], and what the endpoint's discovery said,
// [Prefixed] with "dst"; outbound those of a thousand authorities are kept, and of
// others tls and no_tls_reason. The series are
// shown until a while after ctx, and after the last request ended. An endpoint
// outbound is also one in stack_create_total, and when ctx ends, in
// stack_drop_total.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: a request that its caller cancelled is a success: it tells
// nothing of the endpoint.
//
// Body: a response is over when it has ended, trailers included.
//
// Errors: passed as they are. A refusal by what is below is no request, but
// counts in refusal_total.
//
// Cost: two clock readings, one allocation, and one for a body.
func (m *Meters) Endpoint(ctx context.Context, d Direction, labels Labels) Layer {
	if d == Outbound {
		m.stack(ctx, d, "http", "endpoint")
	}
	l := m.lease(ctx)
	c := m.newCounted(l, m.requests, m.peers(l, d, &m.backends, labels).With(Labels{"direction": string(d)}))
	return func(next httplayer.Service) httplayer.Service { return &endpoint{next, c} }
}

type endpoint struct {
	httplayer.Service
	*counted
}

func (e *endpoint) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	s := &sample{counted: e.counted, ctx: ctx, start: time.Now()}
	e.lease.hold()
	e.inFlight.Inc()
	handed := false
	defer func() {
		if !handed { // a panic, or Goexit
			e.requests.Inc()
			s.done(end{failed: true, grpc: -1, err: unexpected})
		}
	}()
	rsp, err := e.Service.Call(ctx, req)
	handed = true
	switch {
	case err == nil:
		e.requests.Inc()
		s.rsp, s.head = rsp, grpcHeadOf(rsp)
		return httplayer.Completion(ctx, rsp, s), nil
	case errors.Is(err, layer.ErrNotReady):
		e.refusals.Inc()
		e.inFlight.Dec()
		e.lease.release()
	default:
		e.requests.Inc()
		s.End(err)
	}
	return rsp, err
}

func (e *endpoint) Next() httplayer.Service { return e.Service }

func (e *endpoint) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// sample is one response, and the Observer of it.
type sample struct {
	*counted
	ctx   context.Context //nolint:containedctx // the request's: it tells a caller who left from an endpoint that failed
	rsp   *http.Response
	head  grpcHead
	start time.Time
}

func (s *sample) Data(int) {}

func (s *sample) End(err error) { s.done(endOf(s.ctx, s.rsp, s.head, err)) }

func (s *sample) done(e end) {
	s.inFlight.Dec()
	b := s.at(e)
	b.latency.Observe(float64(time.Since(s.start)) / float64(time.Millisecond))
	b.responses.Inc()
	s.lease.release()
}
