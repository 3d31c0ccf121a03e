package meters

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// Control returns a handler for grpc.WithStatsHandler that counts the calls to the
// controller at addr: control_request_total, control_response_total and
// control_response_latency_ms. The labels are those of TLS as for Endpoint. A stream is
// one request, and its latency is its duration. A transparent retry of gRPC is a further
// request. A response has a status_code if it had a header.
func (m *Meters) Control(addr string, labels Labels) stats.Handler {
	return &controller{newEndpointSeries(m.control, fixed(labels.With(Labels{"addr": addr})))}
}

type controller struct{ *endpointSeries }

// answered records whether one attempt of a call received a header.
type answered struct{ atomic.Bool }

type answeredKey struct{}

// TagRPC adds an answered to the context of each attempt.
func (*controller) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, answeredKey{}, new(answered))
}

// HandleRPC counts the beginning and the end of each attempt.
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
		c.inFlight.get().Dec()
		b := c.responses.of(e)
		b.responses.get().Inc()
		b.latency.get().Observe(float64(s.EndTime.Sub(s.BeginTime)) / float64(time.Millisecond))
	}
}

// okStatus is the HTTP status of each gRPC response.
const okStatus = 200

func (*controller) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*controller) HandleConn(context.Context, stats.ConnStats)                       {}

// DNS returns the counter of lookups for one client of the control plane (destination,
// identity): control_dns_resolutions_total. Pass it to dns.WithMetrics, which binds
// record_type and result.
func (m *Meters) DNS(client string) metrics.Counter {
	return dnsCounter{m.dns, Labels{"client": client}}
}

// dnsCounter is a counter with two unbound labels.
type dnsCounter struct {
	family *family[prometheus.Counter]
	labels Labels
}

func (c dnsCounter) With(labels ...string) metrics.Counter {
	return counter{c.family.now(fixed(c.labels.With(Labels{labels[0]: labels[1], labels[2]: labels[3]})))}
}

func (dnsCounter) Add(float64) {}
