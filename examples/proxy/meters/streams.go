package meters

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// streamFamilies contains metrics of requests by route, or by route and backend: their number by
// outcome, and their durations.
type streamFamilies struct {
	grpc      bool // the label grpc_status replaces http_status
	statuses  *family[*counterValue]
	durations *family[*histogramValue]
}

// streams contains the series for one route, or one of its backends. An outcome's series is
// exported after the first request with this outcome.
type streams struct {
	clock
	grpc      bool // see streamFamilies
	durations *handle[*histogramValue]
	statuses  *byLabel[outcome, *handle[*counterValue]]
}

// newStreams returns the series with the labels l. The ones for outcomes are made when they first occur.
func newStreams(f streamFamilies, l labelSet) *streams {
	return &streams{newClock(), f.grpc, f.durations.lazy(l), newByLabel(func(o outcome) *handle[*counterValue] {
		return f.statuses.lazy(l.with(o.labels()))
	})}
}

// stream records one request, and observes its response body. It comes from the pool openStreams,
// and returns there when the response has ended.
type stream struct {
	series   *streams
	ctx      context.Context //nolint:containedctx // the request's, to tell a canceled request from a failed body
	start    time.Duration
	rsp      *http.Response
	head     grpcHead  // rsp's status, if series.grpc
	attempts *attempts // nil if the request is never retried
}

// attempts counts one request's attempts. A request that succeeds after more than one attempt
// counts as a successful retry.
type attempts struct {
	sent  atomic.Int32
	route *Route
}

// attemptsKey is the context key for a request's *attempts.
type attemptsKey struct{}

var openStreams = sync.Pool{New: func() any { return new(stream) }} //nolint:gochecknoglobals // a pool

// call sends req to next and records the result. Rejections are recorded too, because no outer
// layer sends the request again. a counts req's attempts, and is nil if req is never retried.
func (series *streams) call(ctx context.Context, next httplayer.Service, req *http.Request, a *attempts) (*http.Response, error) {
	s := openStreams.Get().(*stream) //nolint:errcheck,forcetypeassert // see openStreams
	*s = stream{series: series, ctx: ctx, start: series.now(), attempts: a}
	rsp, err := next.Call(ctx, req)
	// There is no body to observe, so the request ends here.
	if err != nil {
		o := withoutResponse(req, err)
		if series.grpc {
			_, code := httplayer.StatusFromError(err)
			o.grpc = true
			o.status = int(code)
			// A failure of the proxy has no gRPC status, but a fault.
			if o.err != noFault {
				o.status = -1
			}
		}
		s.done(o)
		return rsp, err
	}
	// s is now the body's observer, and records the request when the body ends.
	s.rsp = rsp
	if series.grpc {
		s.head = grpcHeadOf(rsp)
	}
	return httplayer.Completion(ctx, rsp, s), nil
}

func (s *stream) Data(int) {}

// End implements [layer.Observer]. It records the request when the response body has ended, with err or nil.
func (s *stream) End(err error) {
	// More than one attempt means that this response is a retry's.
	if s.attempts != nil && s.attempts.sent.Load() > 1 {
		class := layer.Classifier[*http.Response](httplayer.Classify).Classify(s.ctx, layer.Outcome[*http.Response]{
			Response: s.rsp, Err: err, Ended: err == nil,
		})
		if !class.IsFailure() {
			s.attempts.route.retries().successes.Add(1)
		}
	}
	o := afterHead(s.rsp, err)
	if s.series.grpc {
		o.grpc = true
		o.status = int(s.head.status(s.rsp, err == nil))
	}
	s.done(o)
}

// done records the outcome and returns s to the pool.
func (s *stream) done(o outcome) {
	s.series.durations.get().Observe((s.series.now() - s.start).Seconds())
	s.series.statuses.get(o).get().Inc()
	*s = stream{}
	openStreams.Put(s)
}

// outcome describes how a request ended. Its fields become the labels error, and http_status or
// grpc_status.
type outcome struct {
	grpc   bool // it was a gRPC request
	status int  // gRPC status if grpc, -1: none; otherwise HTTP status, 0: no response
	err    fault
}

// fault is a value of the label error in linkerd's proxy.
type fault string

const (
	noFault        fault = ""
	failFast       fault = "FAIL_FAST"
	loadShed       fault = "LOAD_SHED"
	requestTimeout fault = "REQUEST_TIMEOUT"
	headersTimeout fault = "RESPONSE_HEADERS_TIMEOUT"
	idleTimeout    fault = "IDLE_TIMEOUT"
	cancelled      fault = "CANCEL"
	broken         fault = "IO"
	unknownFault   fault = "UNKNOWN"
)

// labels returns the outcome as labels of a metric.
func (o outcome) labels() Labels {
	// The label has names, and UNKNOWN for a request without a status.
	if o.grpc {
		name := "UNKNOWN"
		if names := grpcNames(); o.status >= 0 && o.status < len(names) {
			name = names[o.status]
		}
		return Labels{"grpc_status": name, "error": string(o.err)}
	}
	return Labels{"http_status": statusLabel(o.status), "error": string(o.err)}
}

// grpcNames returns the label grpc_status by gRPC status.
func grpcNames() []string {
	// The index is the code, so the order is that of gRPC's status codes.
	return []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
		"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
		"DATA_LOSS", "UNAUTHENTICATED",
	}
}

// withoutResponse returns the outcome of a request that failed without a response. Like in
// linkerd's proxy, the outcome has the status that the client receives if the endpoint failed. All
// other failures have an error and no status.
func withoutResponse(req *http.Request, err error) outcome {
	// Timeouts and cancellations are known by their error, whatever status the client receives.
	if f := faultOf(err); f != noFault {
		return outcome{err: f}
	}
	status, _ := httplayer.StatusFromError(err)
	switch {
	// Other 503s come from layers that had no room for the request.
	case status == http.StatusServiceUnavailable:
		return outcome{err: loadShed}
	case status == http.StatusInternalServerError:
		return outcome{err: unknownFault}
	case strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc"):
		// gRPC failures are responses with status 200 and a status in the trailers.
		status = http.StatusOK
	}
	return outcome{status: httpStatus(status)}
}

// afterHead returns the outcome of a request with a response. err is the error that ended the
// response body, or nil.
func afterHead(rsp *http.Response, err error) outcome {
	o := outcome{status: httpStatus(rsp.StatusCode)}
	if err == nil {
		// The response was complete.
		return o
	}
	switch status, _ := httplayer.StatusFromError(err); {
	// The client did not read the body to the end.
	case errors.Is(err, layer.ErrBodyClosedEarly):
		o.err = cancelled
	case faultOf(err) != noFault:
		o.err = faultOf(err)
	// These mean that the connection to the endpoint broke.
	case status == http.StatusBadGateway || status == http.StatusGatewayTimeout:
		o.err = broken
	default:
		o.err = unknownFault
	}
	return o
}

// faultOf returns the fault for err, or noFault if it is not a timeout, a fail-fast rejection or a
// cancellation.
func faultOf(err error) fault {
	// The order matters: all of these timeouts are also ErrTimeout.
	switch {
	case errors.Is(err, layer.ErrFailFast):
		return failFast
	case errors.Is(err, layer.ErrResponseHeaderTimeout), errors.Is(err, layer.ErrAttemptTimeout):
		return headersTimeout
	case errors.Is(err, layer.ErrIdleTimeout):
		return idleTimeout
	case errors.Is(err, layer.ErrTimeout):
		return timeoutFault(err)
	case errors.Is(err, context.Canceled):
		return cancelled
	}
	return noFault
}

// timeoutFault returns requestTimeout, or noFault if connecting to an endpoint timed out, because
// that is the endpoint's failure.
func timeoutFault(err error) fault {
	var layerErr *layer.Error
	// Layers wrap each other's errors. The outermost one with a kind tells what timed out.
	for errors.As(err, &layerErr) {
		if layerErr.Kind != nil && errors.Is(layerErr.Kind, layer.ErrTimeout) {
			if layerErr.Layer == "endpoint" || layerErr.Layer == "dial" {
				return noFault
			}
			return requestTimeout
		}
		err = layerErr.Err
	}
	return requestTimeout
}
