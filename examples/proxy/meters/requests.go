package meters

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// Layer is a layer of net/http requests.
type Layer = layer.Layer[*http.Request, *http.Response]

// requestFamilies are the metrics of requests to endpoints or controllers.
type requestFamilies struct {
	requests, responses, rejections *family[prometheus.Counter]
	inFlight                        *family[prometheus.Gauge]
	latency                         *family[prometheus.Histogram]
}

func (m *Meters) requestFamilies(prefix string) requestFamilies {
	return requestFamilies{
		requests:   m.counters(prefix+"request_total", "Total count of HTTP requests."),
		responses:  m.counters(prefix+"response_total", "Total count of HTTP responses."),
		rejections: m.counters(prefix+"rejection_total", "Requests that a layer below rejected. They were not sent."),
		inFlight:   m.gauges(prefix+"requests_in_flight", "Requests that have not ended."),
		latency: m.histograms(prefix+"response_latency_ms",
			"Elapsed times between a request's headers being received and its response stream completing", latencyBuckets()...),
	}
}

// Endpoint is a layer that counts the requests to an endpoint: request_total,
// response_total and response_latency_ms. Responses also have the labels status_code,
// classification and, if there is one, grpc_status or error. A request counts in
// request_total when its response begins or fails; until then it counts in
// requests_in_flight only. Labels are authority, [Target], one of [ServerTLS],
// [ClientTLS] and [NoTLS], and the discovery's labels [Prefixed] with "dst". Beyond a
// thousand endpoints outbound, or a thousand sets of labels inbound, only the labels of
// TLS without client_id are kept. An outbound endpoint also counts in stack_create_total,
// and in stack_drop_total when ctx ends.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: a request canceled by its caller is a success, because it does not
// indicate a failure of the endpoint.
//
// Body: a response ends with its body, trailers included.
//
// Errors: forwarded. A rejection counts in rejection_total only.
//
// Cost: two clock readings, and one allocation for a body without other observers.
func (m *Meters) Endpoint(ctx context.Context, d Direction, labels Labels) Layer {
	if d == Outbound {
		m.stack(ctx, d, "http", "endpoint")
	}
	s := newEndpointSeries(m.requests, m.peerLabels(d, Destination, labels).with(Labels{"direction": string(d)}))
	return func(next httplayer.Service) httplayer.Service { return &endpoint{next, s} }
}

type endpoint struct {
	httplayer.Service
	*endpointSeries
}

func (e *endpoint) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	s := samples.Get().(*sample) //nolint:errcheck,forcetypeassert // see samples
	*s = sample{endpointSeries: e.endpointSeries, ctx: ctx, start: e.now()}
	e.inFlight.get().Inc()
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			e.requests.get().Inc()
			s.done(end{failed: true, grpc: -1, err: unexpected})
		}
	}()
	rsp, err := e.Service.Call(ctx, req)
	returned = true
	switch {
	case err == nil:
		e.requests.get().Inc()
		s.rsp, s.head = rsp, grpcHeadOf(rsp)
		return httplayer.Completion(ctx, rsp, s), nil
	case errors.Is(err, layer.ErrNotReady):
		e.rejections.get().Inc()
		e.inFlight.get().Dec()
		s.release()
	default:
		e.requests.get().Inc()
		s.End(err)
	}
	return rsp, err
}

func (e *endpoint) Next() httplayer.Service { return e.Service }

func (e *endpoint) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// sample records one request. It is also the Observer of the response, and is reused after
// the end.
type sample struct {
	*endpointSeries
	ctx   context.Context //nolint:containedctx // of the request: it distinguishes a canceled request from a failed endpoint
	rsp   *http.Response
	head  grpcHead
	start time.Duration
}

func (s *sample) Data(int) {}

func (s *sample) End(err error) { s.done(endOf(s.ctx, s.rsp, s.head, err)) }

func (s *sample) done(e end) {
	s.inFlight.get().Dec()
	b := s.endpointSeries.responses.of(e)
	b.latency.get().Observe(float64(s.now()-s.start) / float64(time.Millisecond))
	b.responses.get().Inc()
	s.release()
}

var samples = sync.Pool{New: func() any { return new(sample) }} //nolint:gochecknoglobals // a pool

func (s *sample) release() {
	*s = sample{}
	samples.Put(s)
}

// end has the labels of a response.
type end struct {
	status int // 0: there was no response
	failed bool
	grpc   int8 // -1: not gRPC
	err    string
}

// endOf returns the end of a response or error. head is read from the response header.
func endOf(ctx context.Context, rsp *http.Response, head grpcHead, err error) end {
	class := layer.Classifier[*http.Response](httplayer.Classify).Classify(ctx, layer.Outcome[*http.Response]{
		Response: rsp, Err: err, Ended: err == nil,
	})
	e := end{failed: class.IsFailure(), grpc: -1}
	if rsp != nil {
		e.status = httpStatus(rsp.StatusCode)
		e.grpc = head.status(rsp, err == nil)
	}
	if err != nil && class != layer.Ignorable && !errors.Is(err, layer.ErrBodyClosedEarly) {
		e.err = ErrorKind(err)
	}
	return e
}

// unknownStatus is the status of all responses whose status does not have three digits,
// because an HTTP/2 endpoint can send any number.
const unknownStatus = -1

// httpStatus returns status if it has three digits, or unknownStatus.
func httpStatus(code int) int {
	if code < 100 || code > 999 {
		return unknownStatus
	}
	return code
}

// statusLabel returns the label of a status; 0 means that there was no response.
func statusLabel(status int) string {
	switch status {
	case 0:
		return ""
	case unknownStatus:
		return "unknown"
	}
	return strconv.Itoa(status)
}

// grpcHead is the gRPC status in the header of a response. It is read before the response
// is returned, because other layers may change the header while a stream is canceled.
type grpcHead struct {
	isGRPC bool
	text   string // of the status, if there are no trailers
}

func grpcHeadOf(rsp *http.Response) grpcHead {
	if rsp == nil {
		return grpcHead{}
	}
	// The names are canonical, so that Get is not needed.
	if kind := rsp.Header["Content-Type"]; len(kind) == 0 || !strings.HasPrefix(kind[0], "application/grpc") {
		return grpcHead{}
	}
	return grpcHead{true, rsp.Header.Get("Grpc-Status")}
}

// status returns the gRPC status of the trailers, or of the header if there are no
// trailers. Unknown codes become UNKNOWN, so that they do not have a series each.
func (h grpcHead) status(rsp *http.Response, ended bool) int8 {
	const unknown, maxCode = 2, 16
	if !h.isGRPC {
		return -1
	}
	text := h.text
	if status := rsp.Trailer["Grpc-Status"]; ended && len(status) > 0 {
		text = status[0]
	}
	if text == "" {
		return -1
	}
	if n, err := strconv.ParseUint(text, 10, 8); err == nil && n <= maxCode {
		return int8(n)
	}
	return unknown
}

func (e end) labels() Labels {
	labels := Labels{"classification": "success"}
	if e.failed {
		labels["classification"] = "failure"
	}
	if e.err != "" {
		labels["error"] = e.err
	}
	if e.status != 0 {
		labels["status_code"] = statusLabel(e.status)
	}
	if e.grpc >= 0 {
		labels["grpc_status"] = strconv.Itoa(int(e.grpc))
	}
	return labels
}

// endpointSeries is the series of one endpoint. Those of responses are bound when the
// first response with their labels ends.
type endpointSeries struct {
	clock
	requests   *handle[prometheus.Counter]
	rejections *handle[prometheus.Counter]
	inFlight   *handle[prometheus.Gauge]
	responses  *byLabel[end, responseSeries]
}

type responseSeries struct {
	responses *handle[prometheus.Counter]
	latency   *handle[prometheus.Histogram]
}

func newEndpointSeries(f requestFamilies, l labelSet) *endpointSeries {
	return &endpointSeries{
		clock: newClock(), requests: f.requests.now(l), rejections: f.rejections.lazy(l), inFlight: f.inFlight.now(l),
		responses: newByLabel(func(e end) responseSeries {
			status := Labels{}
			if e.status != 0 {
				status["status_code"] = statusLabel(e.status)
			}
			return responseSeries{f.responses.lazy(l.with(e.labels())), f.latency.lazy(l.with(status))}
		}),
	}
}
