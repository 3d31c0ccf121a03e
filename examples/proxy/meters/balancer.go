package meters

import (
	"context"
	"net/netip"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// balancerFamilies are the metrics of balancers and their queues.
type balancerFamilies struct {
	endpoints, waiting    *family[prometheus.Gauge]
	updates, queued       *family[prometheus.Counter]
	rejections, ejections *family[prometheus.Counter]
	skipped               *family[prometheus.Counter]
	waits                 *family[prometheus.Histogram]
}

func (m *Meters) balancerFamilies(protocol string) balancerFamilies {
	name := func(s string) string { return "outbound_" + protocol + "_balancer_" + s }
	return balancerFamilies{
		endpoints: m.gauges(name("endpoints"), "Endpoints of a target."),
		updates: m.counters(name("p2c_updates_total"),
			"Updates of a target's endpoints: Reset for a full set, Add and Remove for each endpoint."),
		rejections: m.counters(name("rejections_total"), "Requests that no endpoint of a target accepted."),
		ejections:  m.counters(name("ejections_total"), "Endpoints that were ejected, by cause."),
		skipped:    m.counters(name("ejections_skipped_total"), "Endpoints that were not ejected, because too few would have remained."),
		waiting:    m.gauges(name("queue_length"), "Requests that wait for a target."),
		queued:     m.counters(name("queue_requests_total"), "Requests that have left the queue of a target."),
		waits: m.histograms(name("queue_latency_seconds"), "Time that requests waited in the queue of a target.",
			0.0005, 0.005, 0.05, 0.5, 1, 3),
	}
}

// Balancer returns the instruments of a target's balancer and of the queue above it, for
// the protocol "http" or "tcp"; other protocols have none. The labels are dst, which is
// target, and backend_* of its Service. There is no parent_*, because one balancer serves
// all profiles with the target. dst and backend_* are empty for targets beyond the first
// thousand. A target with a name also counts in stack_create_total, and in stack_drop_total
// when ctx ends.
func (m *Meters) Balancer(ctx context.Context, protocol, target string) (balance.Instruments, layer.Instruments) {
	f, ok := m.balanced[protocol]
	if !ok {
		return balance.Instruments{}, layer.Instruments{}
	}
	if _, err := netip.ParseAddrPort(target); err != nil {
		m.stack(ctx, Outbound, protocol, "balance")
	}
	parent := func(name string) Labels { return Labels{"dst": name}.With(m.meta("backend", name)) }
	l := m.limited(outboundBackends, target, parent(target), parent(""))
	balancer := balance.Instruments{
		Endpoints:        endpointStates{ctx, f.endpoints, l},
		Updates:          newLabelled(f.updates, l, "op"),
		Rejections:       counter{f.rejections.lazy(l)},
		Ejections:        newLabelled(f.ejections, l, "cause"),
		EjectionsSkipped: counter{f.skipped.lazy(l)},
	}
	queue := layer.Instruments{
		QueueLength: gauge{f.waiting.now(l)},
		QueueWait:   queueWait{seconds{f.waits.now(l)}, f.queued.now(l)},
	}
	return balancer, queue
}

// endpointStates is the gauge of endpoints by the label endpoint_state. The numbers of
// this balancer are removed when ctx ends.
type endpointStates struct {
	ctx    context.Context //nolint:containedctx // of the balancer
	family *family[prometheus.Gauge]
	labels labelSet
}

func (e endpointStates) With(label ...string) metrics.Gauge {
	s := &share{series: e.family.now(e.labels.with(Labels{"endpoint_state": label[1]}))}
	context.AfterFunc(e.ctx, s.end)
	return s
}

func (endpointStates) Set(float64) {}
func (endpointStates) Add(float64) {}

// queueWait is the histogram of waiting times in a queue. It also counts the requests
// that waited.
type queueWait struct {
	seconds
	queued *handle[prometheus.Counter]
}

func (w queueWait) With(...string) metrics.Histogram { return w }

func (w queueWait) Observe(ms float64) {
	w.queued.get().Inc()
	w.seconds.Observe(ms)
}
