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

// streamFamilies has the metrics of requests by route, or by route and backend: the number
// of requests by outcome, and their durations.
type streamFamilies struct {
	grpc      bool // the label grpc_status replaces http_status
	statuses  *family[*counterValue]
	durations *family[*histogramValue]
}

// streams has the series of one route, or of one backend of a route. The series of an
// outcome is exported after the first request that has this outcome.
type streams struct {
	clock
	grpc      bool // see streamFamilies
	durations *handle[*histogramValue]
	statuses  *byLabel[outcome, *handle[*counterValue]]
}

func newStreams(f streamFamilies, l labelSet) *streams {
	return &streams{newClock(), f.grpc, f.durations.lazy(l), newByLabel(func(o outcome) *handle[*counterValue] {
		return f.statuses.lazy(l.with(o.labels()))
	})}
}

// stream records one request, and is the observer of its response body. A stream comes
// from the pool openStreams, and goes back to the pool when the response has ended.
type stream struct {
	of       *streams        // the series that record the request
	ctx      context.Context //nolint:containedctx // of the request: it distinguishes a canceled request from a failed body
	start    time.Duration
	rsp      *http.Response
	head     grpcHead  // of rsp, if of.grpc
	attempts *attempts // nil if the request is never retried
}

// attempts counts the attempts of one request. If the request succeeds after more than one
// attempt, the request counts as a successful retry.
type attempts struct {
	sent  atomic.Int32
	route *routeSeries
}

// attemptsKey is the context key of the *attempts of a request.
type attemptsKey struct{}

var openStreams = sync.Pool{New: func() any { return new(stream) }} //nolint:gochecknoglobals // a pool

// call sends req to next and records the result. It also records a rejection, because no
// outer layer sends the request again. The argument a counts the attempts of req. If req
// is never retried, a is nil.
func (of *streams) call(ctx context.Context, next httplayer.Service, req *http.Request, a *attempts) (*http.Response, error) {
	s := openStreams.Get().(*stream) //nolint:errcheck,forcetypeassert // see openStreams
	*s = stream{of: of, ctx: ctx, start: of.now(), attempts: a}
	rsp, err := next.Call(ctx, req)
	if err != nil {
		o := withoutResponse(req, err)
		if of.grpc {
			_, code := httplayer.StatusFromError(err)
			if o.grpc, o.status = true, int(code); o.err != noFault {
				o.status = -1
			}
		}
		s.done(o)
		return rsp, err
	}
	if s.rsp = rsp; of.grpc {
		s.head = grpcHeadOf(rsp)
	}
	return httplayer.Completion(ctx, rsp, s), nil
}

func (s *stream) Data(int) {}

func (s *stream) End(err error) {
	if s.attempts != nil && s.attempts.sent.Load() > 1 {
		class := layer.Classifier[*http.Response](httplayer.Classify).Classify(s.ctx, layer.Outcome[*http.Response]{
			Response: s.rsp, Err: err, Ended: err == nil,
		})
		if !class.IsFailure() {
			s.attempts.route.retries().successes.Add(1)
		}
	}
	o := afterHead(s.rsp, err)
	if s.of.grpc {
		o.grpc, o.status = true, int(s.head.status(s.rsp, err == nil))
	}
	s.done(o)
}

// done records the outcome o and returns s to the pool.
func (s *stream) done(o outcome) {
	s.of.durations.get().Observe((s.of.now() - s.start).Seconds())
	s.of.statuses.of(o).get().Inc()
	*s = stream{}
	openStreams.Put(s)
}

// outcome describes how a request ended. Its fields are the values of two labels: error,
// and either http_status or grpc_status.
type outcome struct {
	grpc   bool
	status int // gRPC status if grpc, -1: none; else HTTP status, 0: no response
	err    fault
}

// fault is a value of the label error, as in linkerd's proxy.
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

func (o outcome) labels() Labels {
	if o.grpc {
		name := "UNKNOWN"
		if names := grpcNames(); o.status >= 0 && o.status < len(names) {
			name = names[o.status]
		}
		return Labels{"grpc_status": name, "error": string(o.err)}
	}
	return Labels{"http_status": statusLabel(o.status), "error": string(o.err)}
}

// grpcNames returns the values of the label grpc_status, by gRPC status.
func grpcNames() []string {
	return []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
		"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
		"DATA_LOSS", "UNAUTHENTICATED",
	}
}

// withoutResponse returns the outcome of a request that failed with err and has no
// response. If the endpoint failed, the outcome has the status that the proxy sends to
// the client, as in linkerd's proxy. After any other failure, it has an error and no
// status.
func withoutResponse(req *http.Request, err error) outcome {
	if f := faultOf(err); f != noFault {
		return outcome{err: f}
	}
	status, _ := httplayer.StatusFromError(err)
	switch {
	case status == http.StatusServiceUnavailable:
		return outcome{err: loadShed}
	case status == http.StatusInternalServerError:
		return outcome{err: unknownFault}
	case strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc"):
		status = http.StatusOK
	}
	return outcome{status: httpStatus(status)}
}

// afterHead returns the outcome of a request with the response rsp. err is the error that
// ended the response body, or nil.
func afterHead(rsp *http.Response, err error) outcome {
	o := outcome{status: httpStatus(rsp.StatusCode)}
	if err == nil {
		return o
	}
	switch status, _ := httplayer.StatusFromError(err); {
	case errors.Is(err, layer.ErrBodyClosedEarly):
		o.err = cancelled
	case faultOf(err) != noFault:
		o.err = faultOf(err)
	case status == http.StatusBadGateway || status == http.StatusGatewayTimeout:
		o.err = broken
	default:
		o.err = unknownFault
	}
	return o
}

// faultOf returns the value of the label error, as a [fault], for a request that failed
// with err. It returns noFault if err is not a timeout, a fail-fast rejection or a
// cancellation.
func faultOf(err error) fault {
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

// timeoutFault returns requestTimeout for err, which is a timeout. If connecting to an
// endpoint timed out, it returns noFault, because this is a failure of the endpoint.
func timeoutFault(err error) fault {
	var at *layer.Error
	for errors.As(err, &at) {
		if at.Kind != nil && errors.Is(at.Kind, layer.ErrTimeout) {
			if at.Layer == "endpoint" || at.Layer == "dial" {
				return noFault
			}
			return requestTimeout
		}
		err = at.Err
	}
	return requestTimeout
}
