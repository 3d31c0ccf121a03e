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
	endpoints, waiting  *family[prometheus.Gauge]
	updates, queued     *family[prometheus.Counter]
	refusals, ejections *family[prometheus.Counter]
	spared, recalled    *family[prometheus.Counter]
	waits               *family[prometheus.Histogram]
}

func (m *Meters) balancerFamilies(protocol string) balancerFamilies {
	name := func(s string) string { return "outbound_" + protocol + "_balancer_" + s }
	return balancerFamilies{
		endpoints: m.gauges(name("endpoints"), "Endpoints of a target."),
		updates:   m.counters(name("p2c_updates_total"), "News of a target's endpoints: Reset for all of them, else for each."),
		refusals:  m.counters(name("refusals_total"), "What no endpoint of a target took."),
		ejections: m.counters(name("ejections_total"), "Endpoints that were taken out, by cause."),
		spared:    m.counters(name("ejections_spared_total"), "Endpoints that were not taken out, lest too few be left."),
		recalled:  m.counters(name("ejections_recalled_total"), "Endpoints that were taken back early, lest too few be left."),
		waiting:   m.gauges(name("queue_length"), "How many wait for a target."),
		queued:    m.counters(name("queue_requests_total"), "How many waited for a target, and wait no more."),
		waits: m.histograms(name("queue_latency_seconds"), "How long they did.",
			0.0005, 0.005, 0.05, 0.5, 1, 3),
	}
}

// Balancer returns the instruments of a target's balancer and of the queue above it, for
// the protocol "http" or "tcp"; other protocols have none. The labels are dst, which is
// target, and backend_* of its Service. There is no parent_*, because one balancer serves
// all profiles with the target. The series are shown for the retention time after ctx. A
// target with a name also counts in stack_create_total, and in stack_drop_total when ctx
// ends.
func (m *Meters) Balancer(ctx context.Context, protocol, target string) (balance.Instruments, layer.Instruments) {
	f, ok := m.balanced[protocol]
	if !ok {
		return balance.Instruments{}, layer.Instruments{}
	}
	if _, err := netip.ParseAddrPort(target); err != nil {
		m.stack(ctx, Outbound, protocol, "balance")
	}
	l := m.seriesLease(ctx)
	if !m.backends.has(l, target) {
		target = ""
	}
	dst := Labels{"dst": target}.With(m.meta("backend", target))
	b := binder{l, dst}
	balancer := balance.Instruments{
		Endpoints:        states{"endpoint_state", func(more Labels) prometheus.Gauge { return f.endpoints.bind(l, dst.With(more)) }},
		Updates:          newLabelled("op", b.counters(f.updates), asItIs),
		Rejections:       b.lazy(f.refusals, nil),
		Ejections:        newLabelled("cause", b.counters(f.ejections), asItIs),
		EjectionsSkipped: b.lazy(f.spared, nil),
		Readmissions:     b.lazy(f.recalled, nil),
	}
	queue := layer.Instruments{
		QueueLength: gauge{f.waiting.bind(l, dst)},
		QueueWait:   waited{seconds{f.waits.bind(l, dst)}, f.queued.bind(l, dst)},
	}
	return balancer, queue
}

// waited counts each wait that it observes.
type waited struct {
	seconds
	queued prometheus.Counter
}

func (w waited) With(...string) metrics.Histogram { return w }

func (w waited) Observe(ms float64) {
	w.queued.Inc()
	w.seconds.Observe(ms)
}
