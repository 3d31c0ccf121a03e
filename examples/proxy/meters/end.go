package meters

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// end is how a response ended, as far as it is counted apart.
type end struct {
	status int // 0: there was none
	failed bool
	grpc   int8 // -1: none
	err    string
}

// endOf judges a response, or the error in its place. Head is what its head said.
func endOf(ctx context.Context, rsp *http.Response, head grpcHead, err error) end {
	class := layer.Classifier[*http.Response](httplayer.Classify).Judge(ctx, layer.Outcome[*http.Response]{
		Response: rsp, Err: err, Ended: err == nil,
	})
	e := end{failed: class.Failed(), grpc: -1}
	if rsp != nil {
		e.status = httpStatus(rsp.StatusCode)
		e.grpc = head.status(rsp, err == nil)
	}
	if err != nil && class != layer.Ignorable && !errors.Is(err, layer.ErrUnread) {
		e.err = ErrorKind(err)
	}
	return e
}

// unknownStatus stands for all that HTTP has not: an endpoint that speaks HTTP/2
// can say any number.
const unknownStatus = -1

// httpStatus is a status as it is counted: of three digits, or unknownStatus.
func httpStatus(code int) int {
	if code < 100 || code > 999 {
		return unknownStatus
	}
	return code
}

// statusLabel is what labels have of a status; 0 is that there was none.
func statusLabel(status int) string {
	switch status {
	case 0:
		return ""
	case unknownStatus:
		return "unknown"
	}
	return strconv.Itoa(status)
}

// grpcHead is what the header of a response says of gRPC. It is read before
// anybody else has the response: where one is broken off, whoever passes it on may
// be changing its header at that moment.
type grpcHead struct {
	spoken bool
	text   string // of its status, if there are no trailers
}

func grpcHeadOf(rsp *http.Response) grpcHead {
	if rsp == nil || !strings.HasPrefix(rsp.Header.Get("Content-Type"), "application/grpc") {
		return grpcHead{}
	}
	return grpcHead{true, rsp.Header.Get("Grpc-Status")}
}

// status reads it where gRPC puts it: in the trailers, or in the header if
// there is nothing else. Codes that gRPC has not are UNKNOWN: there is to be no
// series for each.
func (h grpcHead) status(rsp *http.Response, ended bool) int8 {
	const unknown, most = 2, 16
	if !h.spoken {
		return -1
	}
	text := h.text
	if ended && len(rsp.Trailer["Grpc-Status"]) > 0 {
		text = rsp.Trailer.Get("Grpc-Status")
	}
	if text == "" {
		return -1
	}
	if n, err := strconv.ParseUint(text, 10, 8); err == nil && n <= most {
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

// counted is the series of one endpoint. Those of its responses are bound when
// the first of their kind ends.
type counted struct {
	families requestFamilies
	lease    *lease
	labels   Labels

	requests, refusals prometheus.Counter
	inFlight           prometheus.Gauge

	last atomic.Pointer[bound] // most responses end as the one before
	ends sync.Map              // end → *bound
}

type bound struct {
	end
	responses prometheus.Counter
	latency   prometheus.Histogram
}

func (m *Meters) newCounted(l *lease, f requestFamilies, labels Labels) *counted {
	return &counted{
		families: f, lease: l, labels: labels,
		requests: f.requests.bind(l, labels),
		refusals: f.refusals.bind(l, labels),
		inFlight: f.inFlight.bind(l, labels),
	}
}

func (c *counted) at(e end) *bound {
	if b := c.last.Load(); b != nil && b.end == e {
		return b
	}
	found, ok := c.ends.Load(e)
	if !ok {
		status := Labels{}
		if e.status != 0 {
			status["status_code"] = statusLabel(e.status)
		}
		found, _ = c.ends.LoadOrStore(e, &bound{
			end:       e,
			responses: c.families.responses.bind(c.lease, c.labels.With(e.labels())),
			latency:   c.families.latency.bind(c.lease, c.labels.With(status)),
		})
	}
	b := found.(*bound) //nolint:errcheck,forcetypeassert // stored above
	c.last.Store(b)
	return b
}
