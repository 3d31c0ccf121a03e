package meters

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// streamFamilies are the metrics of requests by route, or by route and backend: numbers
// by outcome, and durations.
type streamFamilies struct {
	statuses  *family[prometheus.Counter]
	durations *family[prometheus.Histogram]
}

// streams is the series of one route, or of one backend of it. The series of an outcome
// is bound at its first request.
type streams struct {
	clock
	durations *handle[prometheus.Histogram]
	statuses  *byLabel[outcome, *handle[prometheus.Counter]]
}

func newStreams(f streamFamilies, l labelSet) *streams {
	return &streams{newClock(), f.durations.lazy(l), newByLabel(func(o outcome) *handle[prometheus.Counter] {
		return f.statuses.lazy(l.with(o.labels()))
	})}
}

// stream records one request. It is also the Observer of the response, and is reused after
// the end.
type stream struct {
	of       *streams
	ctx      context.Context //nolint:containedctx // of the request: it distinguishes a canceled request from a failed body
	start    time.Duration
	rsp      *http.Response
	attempts *attempts // nil: the request is sent once
}

// attempts counts the attempts of a request, to find requests that succeeded by a retry.
type attempts struct {
	sent  atomic.Int32
	route *routeSeries
}

type attemptsKey struct{}

var openStreams = sync.Pool{New: func() any { return new(stream) }} //nolint:gochecknoglobals // a pool

// call sends a request to next and records it. A rejection is recorded too, because no
// layer above sends the request elsewhere. a is nil if the request is sent once.
func (of *streams) call(ctx context.Context, next httplayer.Service, req *http.Request, a *attempts) (*http.Response, error) {
	s := openStreams.Get().(*stream) //nolint:errcheck,forcetypeassert // see openStreams
	*s = stream{of: of, ctx: ctx, start: of.now(), attempts: a}
	rsp, err := next.Call(ctx, req)
	if err != nil {
		s.done(withoutResponse(req, err))
		return rsp, err
	}
	s.rsp = rsp
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
	s.done(afterHead(s.rsp, err))
}

func (s *stream) done(o outcome) {
	s.of.durations.get().Observe((s.of.now() - s.start).Seconds())
	s.of.statuses.of(o).get().Inc()
	*s = stream{}
	openStreams.Put(s)
}

// outcome is the labels http_status and error of a request.
type outcome struct {
	status int // 0: there was no response
	err    fault
}

// fault is the kind of an error, as in linkerd's route metrics.
type fault uint8

const (
	noFault fault = iota
	failFast
	loadShed
	requestTimeout
	headersTimeout
	idleTimeout
	cancelled
	broken
	unknownFault
)

func (f fault) String() string {
	return [...]string{
		"", "FAIL_FAST", "LOAD_SHED", "REQUEST_TIMEOUT", "RESPONSE_HEADERS_TIMEOUT", "IDLE_TIMEOUT", "CANCEL", "IO", "UNKNOWN",
	}[f]
}

func (o outcome) labels() Labels {
	return Labels{"http_status": statusLabel(o.status), "error": o.err.String()}
}

// withoutResponse returns the outcome of a request that failed with err. As in linkerd's
// proxy, a failure of an endpoint counts as the response that the client gets, and a
// failure above the endpoints counts as an error.
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

// afterHead returns the outcome of a response whose body ended with err.
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

// faultOf returns the fault of an error. It is for the errors that have the same name
// with and without a response.
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

// timeoutFault distinguishes the time limit of a request from that of connecting to an
// endpoint. The latter is a failure of the endpoint.
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
