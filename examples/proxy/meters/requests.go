package meters

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// Layer is a layer of HTTP requests.
type Layer = layer.Layer[*http.Request, *http.Response]

// measured is the part that all layers of HTTP requests have in common.
type measured struct{ httplayer.Service }

func (m measured) Next() httplayer.Service { return m.Service }

func (measured) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// requestFamilies has the metrics of the requests to endpoints, or of those to controllers.
type requestFamilies struct {
	requests, responses, rejections *family[*counterValue]
	inFlight                        *family[*gaugeValue]
	latency                         *family[*histogramValue]
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

// Endpoint returns a layer that counts the requests to an endpoint in request_total, response_total
// and response_latency_ms. A request counts in request_total when its response begins or fails. It
// counts in requests_in_flight until its response ends. An outbound endpoint counts in
// stack_create_total, and in stack_drop_total when ctx ends.
//
// labels contain authority, [Target], one of [ServerTLS], [ClientTLS] and [NoTLS], and [Prefixed]
// labels of discovery. Responses also have status_code, classification, grpc_status and error. At
// most 200 outbound and a thousand inbound endpoints have separate series. Further outbound
// endpoints share the series of their authority, without target_* and dst_pod, for at most 200
// authorities. All others share series with only tls and no_tls_reason of the argument labels.
//
// Admission: Ready is forwarded. A rejection counts in rejection_total only.
//
// Cancellation: a request that its caller cancels counts as a success.
//
// Body: a response ends with its body and trailers.
//
// Errors: forwarded.
//
// Cost: two clock readings, and one allocation for a body without other observers.
func (m *Meters) Endpoint(ctx context.Context, d Direction, labels Labels) Layer {
	if d == Outbound {
		m.stack(ctx, d, "http", "endpoint")
	}
	s := newEndpointSeries(m.requests, m.peerLabels(d, Destination, labels).with(Labels{"direction": string(d)}))
	return func(next httplayer.Service) httplayer.Service { return &endpoint{measured{next}, s} }
}

// endpoint is a service that counts the requests to one endpoint.
type endpoint struct {
	measured
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
		e.inFlight.get().Add(-1)
		s.release()
	default:
		e.requests.get().Inc()
		s.End(err)
	}
	return rsp, err
}

// sample records one request, and is the observer of its response body. A sample comes
// from the pool samples, and goes back to the pool when the response has ended.
type sample struct {
	*endpointSeries
	ctx   context.Context //nolint:containedctx // of the request: it distinguishes a canceled request from a failed endpoint
	rsp   *http.Response
	head  grpcHead
	start time.Duration
}

func (s *sample) Data(int) {}

func (s *sample) End(err error) { s.done(endOf(s.ctx, s.rsp, s.head, err)) }

// done counts the end e of the response, and returns s to the pool.
func (s *sample) done(e end) {
	s.inFlight.get().Add(-1)
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

// end describes how a request ended. Its fields are values of labels of response_total.
type end struct {
	status int // HTTP status; 0: there was no response
	failed bool
	grpc   int8   // gRPC status; -1: not a gRPC response
	err    string // label error, or ""
}

// endOf returns how a request ended. rsp is nil if there was no response. err is the
// error of the request or of its response body, or nil. head has the gRPC status in the
// response headers.
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

// unknownStatus replaces a status code that does not have three digits. An HTTP/2 endpoint
// can send any number, and each number would otherwise make new series.
const unknownStatus = -1

// httpStatus returns code if it has three digits, and unknownStatus otherwise.
func httpStatus(code int) int {
	if code < 100 || code > 999 {
		return unknownStatus
	}
	return code
}

// statusLabel returns the value of the label for a status code. It returns "" for 0, which
// means that there was no response.
func statusLabel(status int) string {
	switch status {
	case 0:
		return ""
	case unknownStatus:
		return "unknown"
	}
	return strconv.Itoa(status)
}

// grpcHead is the gRPC status in the headers of a response. It is read before the layer
// returns the response, because other layers may change the headers later.
type grpcHead struct {
	isGRPC bool
	text   string // value of the header Grpc-Status, or ""
}

// grpcHeadOf reads the gRPC status in the headers of rsp, which may be nil.
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

// status returns the gRPC status of rsp, or -1 if rsp has none. If ended is true, the body
// ended without an error, and the status in the trailers takes precedence. Otherwise the
// reader of the body may still write the trailers. An unknown code becomes UNKNOWN, so that
// the number of series is limited.
func (h grpcHead) status(rsp *http.Response, ended bool) int8 {
	const unknown, maxCode = 2, 16
	if !h.isGRPC {
		return -1
	}
	text := h.text
	if ended {
		if status := rsp.Trailer["Grpc-Status"]; len(status) > 0 {
			text = status[0]
		}
	}
	if text == "" {
		return -1
	}
	if n, err := strconv.ParseUint(text, 10, 8); err == nil && n <= maxCode {
		return int8(n)
	}
	return unknown
}

// labels returns e as labels of a series.
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

// endpointSeries has the series of one endpoint. A series of responses is exported after
// the first response with its labels has ended.
type endpointSeries struct {
	clock
	requests   *handle[*counterValue]
	rejections *handle[*counterValue]
	inFlight   *handle[*gaugeValue]
	responses  *byLabel[end, responseSeries]
}

type responseSeries struct {
	responses *handle[*counterValue]
	latency   *handle[*histogramValue]
}

// newEndpointSeries returns the series in f with the labels l.
func newEndpointSeries(f requestFamilies, l labelSet) *endpointSeries {
	return &endpointSeries{
		clock: newClock(), requests: f.requests.lazy(l), rejections: f.rejections.lazy(l), inFlight: f.inFlight.lazy(l),
		responses: newByLabel(func(e end) responseSeries {
			status := Labels{}
			if e.status != 0 {
				status["status_code"] = statusLabel(e.status)
			}
			return responseSeries{f.responses.lazy(l.with(e.labels())), f.latency.lazy(l.with(status))}
		}),
	}
}
