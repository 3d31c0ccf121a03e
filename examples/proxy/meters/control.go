package meters

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// Control returns a handler for grpc.WithStatsHandler that counts calls to the controller at addr
// in control_request_total, control_response_total and control_response_latency_ms. labels describe
// the connection's TLS, see [ServerTLS] and [NoTLS].
//
// A stream counts as one request, whose latency is the stream's duration. gRPC's transparent
// retries count as further requests. A response without headers lacks the label status_code.
func (m *Meters) Control(addr string, labels Labels) stats.Handler {
	return &controller{newEndpointSeries(m.control, fixed(labels.With(Labels{"addr": addr})))}
}

// controller is a stats.Handler that counts each attempt of a call.
type controller struct{ *endpointSeries }

// answered tells whether an attempt has received response headers.
type answered struct{ atomic.Bool }

// answeredKey is the context key for an attempt's *answered.
type answeredKey struct{}

// TagRPC implements [stats.Handler]. It adds an *answered to each attempt's context.
func (*controller) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, answeredKey{}, new(answered))
}

// HandleRPC implements [stats.Handler]. It counts an attempt when it begins and when it ends.
func (c *controller) HandleRPC(ctx context.Context, s stats.RPCStats) {
	a := ctx.Value(answeredKey{}).(*answered) //nolint:errcheck,forcetypeassert // from TagRPC
	switch s := s.(type) {
	case *stats.Begin:
		c.requests.get().Inc()
		c.inFlight.get().Inc()
	case *stats.InHeader, *stats.InTrailer: // a response without messages only has trailers
		a.Store(true)
	case *stats.End:
		code := status.Code(s.Error)
		if code == codes.OK && !a.Load() { // an attempt that gRPC retries ends without an error
			code = codes.Unavailable
		}
		e := end{failed: layer.ClassifyGRPC(uint32(code)).IsFailure(), grpc: int8(min(code, 16))} // 16 is the last code of gRPC
		if a.Load() {
			e.status = okStatus
		}
		c.inFlight.get().Add(-1)
		b := c.responses.get(e)
		b.responses.get().Inc()
		b.latency.get().Observe(float64(s.EndTime.Sub(s.BeginTime)) / float64(time.Millisecond))
	}
}

// okStatus is the HTTP status of all gRPC responses, even of failed calls.
const okStatus = 200

func (*controller) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*controller) HandleConn(context.Context, stats.ConnStats)                       {}

// DNS returns the counter control_dns_resolutions_total for lookups by one client of the control
// plane, such as destination or identity. Pass it to dns.WithMetrics, which sets the labels
// record_type and result.
func (m *Meters) DNS(client string) metrics.Counter {
	return dnsCounter{m.dns, Labels{"client": client}}
}

// dnsCounter is a go-kit counter that still needs the values of two labels, so Add does nothing
// before With.
type dnsCounter struct {
	family *family[*counterValue]
	labels Labels
}

func (c dnsCounter) With(labels ...string) metrics.Counter {
	return counter{c.family.eager(fixed(c.labels.With(Labels{labels[0]: labels[1], labels[2]: labels[3]})))}
}

func (dnsCounter) Add(float64) {}
