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

// Control returns a handler for grpc.WithStatsHandler that counts the calls to the
// controller at addr. The metrics are control_request_total, control_response_total and
// control_response_latency_ms. labels describe the TLS of the connection, see [ServerTLS]
// and [NoTLS].
//
// A stream counts as one request, and its latency is its duration. A transparent retry of
// gRPC counts as a further request. A response without headers has no label status_code.
func (m *Meters) Control(addr string, labels Labels) stats.Handler {
	return &controller{newEndpointSeries(m.control, fixed(labels.With(Labels{"addr": addr})))}
}

// controller is a stats handler of gRPC that counts each attempt of a call. It counts in
// the embedded endpointSeries.
type controller struct{ *endpointSeries }

// answered records whether an attempt of a call has received response headers.
type answered struct{ atomic.Bool }

// answeredKey is the context key of the *answered of an attempt.
type answeredKey struct{}

// TagRPC is part of [stats.Handler]. It adds an *answered to the context of each attempt.
func (*controller) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, answeredKey{}, new(answered))
}

// HandleRPC is part of [stats.Handler]. It counts the start and the end of each attempt.
func (c *controller) HandleRPC(ctx context.Context, s stats.RPCStats) {
	a := ctx.Value(answeredKey{}).(*answered) //nolint:errcheck,forcetypeassert // TagRPC's
	switch s := s.(type) {
	case *stats.Begin:
		c.requests.get().Inc()
		c.inFlight.get().Inc()
	case *stats.InHeader, *stats.InTrailer: // a response without messages has trailers only
		a.Store(true)
	case *stats.End:
		code := status.Code(s.Error)
		if code == codes.OK && !a.Load() { // an attempt that gRPC retries ends without an error
			code = codes.Unavailable
		}
		e := end{failed: layer.ClassifyGRPC(uint32(code)).IsFailure(), grpc: int8(min(code, 16))}
		if a.Load() {
			e.status = okStatus
		}
		c.inFlight.get().Add(-1)
		b := c.responses.of(e)
		b.responses.get().Inc()
		b.latency.get().Observe(float64(s.EndTime.Sub(s.BeginTime)) / float64(time.Millisecond))
	}
}

// okStatus is the HTTP status of every gRPC response, whether or not the call failed.
const okStatus = 200

func (*controller) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*controller) HandleConn(context.Context, stats.ConnStats)                       {}

// DNS returns the counter control_dns_resolutions_total for the DNS look-ups of one client
// of the control plane, such as destination or identity. Pass it to dns.WithMetrics, which
// sets the labels record_type and result.
func (m *Meters) DNS(client string) metrics.Counter {
	return dnsCounter{m.dns, Labels{"client": client}}
}

// dnsCounter is a go-kit counter that still needs the values of two labels. With returns
// the counter with these values. Add has no effect without With.
type dnsCounter struct {
	family *family[*counterValue]
	labels Labels
}

func (c dnsCounter) With(labels ...string) metrics.Counter {
	return counter{c.family.now(fixed(c.labels.With(Labels{labels[0]: labels[1], labels[2]: labels[3]})))}
}

func (dnsCounter) Add(float64) {}
