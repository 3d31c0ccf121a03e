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

// Layer is a layer for HTTP requests.
type Layer = layer.Layer[*http.Request, *http.Response]

// measured contains what all layers for HTTP requests share: they wrap one Service, and [layer.Describe] shows them
// as "metrics".
type measured struct{ httplayer.Service }

func (m measured) Next() httplayer.Service { return m.Service }

func (measured) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// requestFamilies contains the metrics of requests to endpoints or to controllers. Each field is a metric with all
// its series; [Meters.requestFamilies] tells what each of them counts.
type requestFamilies struct {
	requests, responses, rejections *family[*counterValue]
	inFlight                        *family[*gaugeValue]
	latency                         *family[*histogramValue]
}

// requestFamilies makes the metrics for requests. prefix is the beginning of their names.
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

// Endpoint returns a layer that counts requests to an endpoint in request_total, response_total and
// response_latency_ms. A request counts in request_total when its response begins or fails, and in
// requests_in_flight until its response ends. An outbound endpoint counts in stack_create_total,
// and in stack_drop_total when ctx ends.
//
// labels contain authority, [Target], one of [ServerTLS], [ClientTLS] and [NoTLS], and discovery's
// labels with [Prefixed]. Responses also have status_code, classification, grpc_status and error.
// At most 200 outbound and 1000 inbound endpoints get series of their own. Further outbound ones
// share the series of at most 200 authorities, without target_* and dst_pod. All others only have
// tls and no_tls_reason.
//
// Admission: Ready is forwarded. A rejection only counts in rejection_total.
//
// Cancellation: a request that its caller cancels counts as a success. If the client left before
// the response, its status_code is 499, and its grpc_status 1.
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

// endpoint counts the requests to one endpoint.
type endpoint struct {
	measured
	*endpointSeries
}

// Call counts the request and its response. The response counts when its body ends.
func (e *endpoint) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	// The pool saves an allocation per request. s belongs to this request until release.
	s := samples.Get().(*sample) //nolint:errcheck,forcetypeassert // see samples
	*s = sample{endpointSeries: e.endpointSeries, ctx: ctx, start: e.now()}
	e.inFlight.get().Inc()
	returned := false
	// If Call panics, the request must still leave requests_in_flight.
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
		// The headers are read now, because outer layers may change them before the body ends.
		s.rsp = rsp
		s.head = grpcHeadOf(rsp)
		// s is now the body's observer, and counts the request when the body ends.
		return httplayer.Completion(ctx, rsp, s), nil
	// Nothing was sent, so the request only counts as a rejection, and not in request_total.
	case errors.Is(err, layer.ErrNotReady):
		e.rejections.get().Inc()
		e.inFlight.get().Add(-1)
		s.release()
	default:
		e.requests.get().Inc()
		end := endOf(ctx, nil, grpcHead{}, err)
		// A gRPC client that left has the status CANCELLED, as linkerd's proxy reports it.
		if end.status == httplayer.StatusClientClosedRequest && isGRPC(req) {
			end.grpc = grpcCanceled
		}
		s.done(end)
	}
	return rsp, err
}

// grpcCanceled is the gRPC status CANCELLED.
const grpcCanceled = 1

// isGRPC reports whether req's content type is that of gRPC.
func isGRPC(req *http.Request) bool {
	return strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc")
}

// sample records one request, and observes its response body. It comes from the pool samples, and
// returns there when the response has ended.
type sample struct {
	*endpointSeries
	ctx   context.Context //nolint:containedctx // the request's, to tell a canceled request from a failed endpoint
	rsp   *http.Response
	head  grpcHead
	start time.Duration // when the request arrived, by endpointSeries.now
}

func (s *sample) Data(int) {}

func (s *sample) End(err error) { s.done(endOf(s.ctx, s.rsp, s.head, err)) }

// done counts the end of a response, and returns s to the pool.
func (s *sample) done(e end) {
	s.inFlight.get().Add(-1)
	b := s.endpointSeries.responses.get(e)
	// The unit is milliseconds, as the metric's name says.
	b.latency.get().Observe(float64(s.now()-s.start) / float64(time.Millisecond))
	b.responses.get().Inc()
	s.release()
}

var samples = sync.Pool{New: func() any { return new(sample) }} //nolint:gochecknoglobals // a pool

func (s *sample) release() {
	*s = sample{}
	samples.Put(s)
}

// end describes how a request ended. Its fields become labels of response_total.
type end struct {
	status int    // HTTP status; 0: no response
	failed bool   // the label classification is failure
	grpc   int8   // gRPC status; -1: not a gRPC response
	err    string // the label error, or ""
}

// endOf returns how a request ended. rsp is nil if there was no response. err is the error of the
// request or its response body, or nil. head contains the gRPC status from the response headers.
func endOf(ctx context.Context, rsp *http.Response, head grpcHead, err error) end {
	// The body has ended without an error only if err is nil.
	class := layer.Classifier[*http.Response](httplayer.Classify).Classify(ctx, layer.Outcome[*http.Response]{
		Response: rsp, Err: err, Ended: err == nil,
	})
	e := end{failed: class.IsFailure(), grpc: -1}
	if rsp != nil {
		e.status = httpStatus(rsp.StatusCode)
		e.grpc = head.status(rsp, err == nil)
	} else if status, _ := httplayer.StatusFromError(err); status == httplayer.StatusClientClosedRequest {
		// A client that left gets no response, but linkerd's proxy reports 499 for it.
		e.status = status
	}
	// Neither a canceled request nor a body that the client did not want is an error.
	if err != nil && class != layer.Ignorable && !errors.Is(err, layer.ErrBodyClosedEarly) {
		e.err = ErrorKind(err)
	}
	return e
}

// unknownStatus replaces status codes that do not have three digits. HTTP/2 endpoints can send any
// number, and each would make new series.
const unknownStatus = -1

// httpStatus returns code if it has three digits, and otherwise unknownStatus.
func httpStatus(code int) int {
	if code < 100 || code > 999 {
		return unknownStatus
	}
	return code
}

// statusLabel returns the label for a status code. 0 means that there was no response.
func statusLabel(status int) string {
	switch status {
	case 0:
		return ""
	case unknownStatus:
		return "unknown"
	}
	return strconv.Itoa(status)
}

// grpcHead is the gRPC status in a response's headers. It is read before the layer returns the
// response, because other layers may change the headers later.
type grpcHead struct {
	isGRPC bool   // the response is one of gRPC
	text   string // Grpc-Status, or ""
}

// grpcHeadOf reads the gRPC status in rsp's headers. rsp may be nil.
func grpcHeadOf(rsp *http.Response) grpcHead {
	if rsp == nil {
		return grpcHead{}
	}
	// The names are canonical, so Get is not needed.
	if kind := rsp.Header["Content-Type"]; len(kind) == 0 || !strings.HasPrefix(kind[0], "application/grpc") {
		return grpcHead{}
	}
	return grpcHead{isGRPC: true, text: rsp.Header.Get("Grpc-Status")}
}

// status returns rsp's gRPC status, or -1 if it has none. If ended is true, the body ended without
// an error, and the status in the trailers takes precedence. Otherwise they must not be read,
// because the body's reader may still write them. Unknown codes become UNKNOWN, which limits the
// number of series.
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

// labels returns e as labels.
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

// endpointSeries contains the series for one endpoint. A series for responses is exported after the
// first response with its labels has ended.
type endpointSeries struct {
	clock
	requests   *handle[*counterValue]
	rejections *handle[*counterValue]
	inFlight   *handle[*gaugeValue]
	responses  *byLabel[end, responseSeries]
}

// responseSeries contains the series for responses that ended in the same way.
type responseSeries struct {
	responses *handle[*counterValue]
	latency   *handle[*histogramValue]
}

// newEndpointSeries returns f's series with the labels l.
func newEndpointSeries(f requestFamilies, l labelSet) *endpointSeries {
	return &endpointSeries{
		clock: newClock(), requests: f.requests.lazy(l), rejections: f.rejections.lazy(l), inFlight: f.inFlight.lazy(l),
		responses: newByLabel(func(e end) responseSeries {
			// The latency has fewer labels than the number of responses, because each of its series has many
			// buckets.
			status := Labels{}
			if e.status != 0 {
				status["status_code"] = statusLabel(e.status)
			}
			return responseSeries{f.responses.lazy(l.with(e.labels())), f.latency.lazy(l.with(status))}
		}),
	}
}
