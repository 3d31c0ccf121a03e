package meters

import (
	"context"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// Control counts the calls to a controller at addr: control_request_total,
// control_response_total and control_response_latency_ms. Give it to the
// connection with grpc.WithStatsHandler, and TLS as labels as for Endpoint. A
// stream is one request, and its latency the time it lasted. The series are
// shown until a while after ctx.
func (m *Meters) Control(ctx context.Context, addr string, labels Labels) stats.Handler {
	return &controller{m.newCounted(m.lease(ctx), m.control, labels.With(Labels{"addr": addr}))}
}

type controller struct{ *counted }

func (*controller) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC counts beginnings and ends. gRPC tries again by itself only where
// the server has not seen a call; that is not counted.
func (c *controller) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.Begin:
		if !s.IsTransparentRetryAttempt {
			c.requests.Inc()
			c.inFlight.Inc()
		}
	case *stats.End:
		code := status.Code(s.Error)
		c.inFlight.Dec()
		b := c.at(end{status: okStatus, failed: layer.ClassOfGRPC(uint32(code)).Failed(), grpc: int8(min(code, 16))})
		b.responses.Inc()
		b.latency.Observe(float64(s.EndTime.Sub(s.BeginTime)) / float64(time.Millisecond))
	}
}

// okStatus is what gRPC is always answered with.
const okStatus = 200

func (*controller) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*controller) HandleConn(context.Context, stats.ConnStats)                       {}

// DNS returns the counter of names that were looked up for one client of the
// control plane (destination, identity): control_dns_resolutions_total. Give it to
// dns.Measured, which binds record_type and result; all are shown from then on.
func (m *Meters) DNS(client string) metrics.Counter {
	return lookups{binder{m.always, Labels{"client": client}}, m.dns}
}

// lookups is a counter of which two labels are not bound yet.
type lookups struct {
	binder
	family *family[prometheus.Counter]
}

func (l lookups) With(labels ...string) metrics.Counter {
	return l.counter(l.family, Labels{labels[0]: labels[1], labels[2]: labels[3]})
}

func (lookups) Add(float64) {}
