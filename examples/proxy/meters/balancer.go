package meters

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// balancerFamilies contains the metrics of balancers and the queues in front of them, for one protocol. Each field
// is a metric with all its series; see [Meters.balancerFamilies] for what each of them counts.
// balancerFamilies contains the metrics of balancers and the queues in front of them.
type balancerFamilies struct {
	endpoints, all        *family[*gaugeValue]
	waiting               *family[*gaugeValue]
	updates, queued       *family[*counterValue]
	rejections, ejections *family[*counterValue]
	skipped               *family[*counterValue]
	waits                 *family[*histogramValue]
}

// balancerFamilies returns the families for one protocol, "http" or "tcp", which is part of their names.
func (m *Meters) balancerFamilies(protocol string) balancerFamilies {
	// Linkerd's dashboards use these names, so they must not change.
	name := func(s string) string { return "outbound_" + protocol + "_balancer_" + s }
	return balancerFamilies{
		endpoints: m.gauges(name("endpoints"), "Endpoints of a target."),
		all:       m.gauges(name("p2c_endpoints"), "The number of endpoints currently in the balancer"),
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

// Parent is the resource to which a profile or policy belongs, such as a Service. Its fields are
// the values of the labels parent_*.
type Parent struct{ Group, Kind, Namespace, Name, Port, SectionName string }

// labels returns the labels parent_* for p.
func (p Parent) labels() Labels {
	return Prefixed("parent", Labels{
		"group": p.Group, "kind": p.Kind, "namespace": p.Namespace, "name": p.Name, "port": p.Port, "section_name": p.SectionName,
	})
}

// outboundBalancers is the kind of name by which [Meters.limited] limits balancers' series. Such a
// name consists of a balancer's target and parent.
const outboundBalancers = "outbound balancers"

// Balancer returns the instruments for target's balancer and the queue in front of it. parent is
// the resource whose profiles use the balancer. For protocols other than "http" and "tcp", the
// instruments are zero. The label dst is target, the labels backend_* describe target's Service,
// and parent_* describe parent. Only the first 200 pairs of target and parent get series of their
// own. All others share series in which backend_kind and parent_kind are "default", and the other
// labels are empty.
//
// If target is a name, the balancer also counts in stack_create_total, and in stack_drop_total when
// ctx ends.
func (m *Meters) Balancer(ctx context.Context, protocol, target string, parent Parent) (balance.Instruments, layer.Instruments) {
	f, ok := m.balanced[protocol]
	if !ok {
		return balance.Instruments{}, layer.Instruments{}
	}
	// An error means that target is a name. Only those have a balancer that is counted.
	if _, err := netip.ParseAddrPort(target); err != nil {
		m.stack(ctx, Outbound, protocol, "balance")
	}
	labels := func(name string, parent Parent) Labels {
		return Labels{"dst": name}.With(m.meta("backend", name), parent.labels())
	}
	// The name identifies a series in the limit, so it must contain everything that differs between balancers.
	name := strings.Join([]string{target, parent.Kind, parent.Namespace, parent.Name, parent.Port, parent.SectionName}, " ")
	// Beyond the limit, all balancers share these anonymous labels.
	l := m.limited(outboundBalancers, name, labels(target, parent), func(Labels) labelSet {
		return fixed(labels("", Parent{Kind: "default"}))
	})
	// Several balancers may have the same labels, so the gauges are sums of shares that end with ctx.
	states := &endpointStates{family: f.endpoints, all: f.all.lazy(l), labels: l}
	context.AfterFunc(ctx, states.end)
	balancer := balance.Instruments{
		Endpoints:        states,
		Updates:          bindable{f.updates, l, "op"},
		Rejections:       counter{f.rejections.lazy(l)},
		Ejections:        bindable{f.ejections, l, "cause"},
		EjectionsSkipped: counter{f.skipped.lazy(l)},
	}
	queue := layer.Instruments{
		QueueLength: gauge{f.waiting.lazy(l)},
		QueueWait:   queueWait{seconds{f.waits.lazy(l)}, f.queued.lazy(l)},
	}
	return balancer, queue
}

// endpointStates is the gauge for the number of endpoints, by the label endpoint_state. Each write
// also goes to the gauge for all endpoints. Several balancers may share the gauges, whose values
// are then sums. When a balancer's context ends, its numbers are subtracted again.
type endpointStates struct {
	family *family[*gaugeValue]
	all    *handle[*gaugeValue]
	labels labelSet

	mu     sync.Mutex
	shares []*share // two for each state: in its own series, and in the gauge for all endpoints
}

// With returns this balancer's gauge for one state. label is the name endpoint_state and its value, as
// package balance passes them. The gauge ends with the balancer's context.
func (e *endpointStates) With(label ...string) metrics.Gauge {
	// label[0] is the name "endpoint_state".
	state := label[1]
	s := stateShare{
		share: &share{series: e.family.lazy(e.labels.with(Labels{"endpoint_state": state}))},
		all:   &share{series: e.all},
	}
	// end subtracts all shares that are registered here.
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shares = append(e.shares, s.share, s.all)
	return s
}

// stateShare is one balancer's share in the gauge for a state, and in the one for all endpoints.
type stateShare struct {
	*share

	all *share
}

// With returns s, because its labels are complete.
func (s stateShare) With(...string) metrics.Gauge { return s }

// Set sets the number of endpoints in the state, and changes the number of all by the same difference.
func (s stateShare) Set(value float64) {
	s.share.Set(value)
	s.all.Set(value)
}

func (s stateShare) Add(delta float64) {
	s.share.Add(delta)
	s.all.Add(delta)
}

// Set and Add do nothing: the series of all states have the label endpoint_state.

func (*endpointStates) Set(float64) {}
func (*endpointStates) Add(float64) {}

// end subtracts the balancer's numbers from all gauges, and ends them.
func (e *endpointStates) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.shares {
		s.end()
	}
}

// queueWait observes how long requests waited in a queue, and counts them when they leave it.
type queueWait struct {
	seconds
	queued *handle[*counterValue]
}

// With returns w, because its labels are complete.
func (w queueWait) With(...string) metrics.Histogram { return w }

// Observe records a wait of ms milliseconds, after which a request has left the queue.
func (w queueWait) Observe(ms float64) {
	w.queued.get().Inc()
	w.seconds.Observe(ms)
}
