package meters

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// balancerFamilies has the metrics of balancers, and of the queue in front of each.
type balancerFamilies struct {
	endpoints, waiting    *family[*gaugeValue]
	updates, queued       *family[*counterValue]
	rejections, ejections *family[*counterValue]
	skipped               *family[*counterValue]
	waits                 *family[*histogramValue]
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

// Parent is the resource to which a profile or a policy belongs, such as a Service. The
// fields are the values of the labels parent_* of metrics.
type Parent struct{ Group, Kind, Namespace, Name, Port, SectionName string }

// Parent returns the resource to which the profile p belongs, such as a Service. If p
// comes from a policy, the labels of the policy describe the resource. Otherwise Parent
// derives the resource from dst, the name:port of the destination in p.
func (m *Meters) Parent(dst string, p *profiles.Profile) Parent {
	if p.Policy != nil {
		return m.parent(dst, p.Policy.Labels)
	}
	return m.parent(dst, nil)
}

// parent returns the resource that the labels parent_* in l describe. If l is nil, it
// derives the resource from the name and port in dst.
func (m *Meters) parent(dst string, l Labels) Parent {
	if l == nil {
		l = m.meta("parent", dst)
	}
	return Parent{
		l["parent_group"], l["parent_kind"], l["parent_namespace"], l["parent_name"], l["parent_port"], l["parent_section_name"],
	}
}

func (p Parent) labels() Labels {
	return Prefixed("parent", Labels{
		"group": p.Group, "kind": p.Kind, "namespace": p.Namespace, "name": p.Name, "port": p.Port, "section_name": p.SectionName,
	})
}

// outboundBalancers is the kind of name with which [Meters.limited] limits the series of
// balancers. Such a name consists of the target of a balancer and its parent. Names beyond
// the limit share series.
const outboundBalancers = "outbound balancers"

// Balancer returns the instruments of the balancer of target, and of the queue in front of
// it. The argument parent is the resource of the profiles that use this balancer. For a
// protocol other than "http" and "tcp", the instruments are zero. The label dst is target.
// The labels backend_* describe the Service of target, and parent_* describe parent. Only
// the first 200 pairs of target and parent have separate series. Other pairs share series,
// in which backend_kind and parent_kind are "default" and the other labels are empty.
//
// If target is a name, the balancer also counts in stack_create_total, and in
// stack_drop_total when ctx ends.
func (m *Meters) Balancer(ctx context.Context, protocol, target string, parent Parent) (balance.Instruments, layer.Instruments) {
	f, ok := m.balanced[protocol]
	if !ok {
		return balance.Instruments{}, layer.Instruments{}
	}
	if _, err := netip.ParseAddrPort(target); err != nil {
		m.stack(ctx, Outbound, protocol, "balance")
	}
	labels := func(name string, parent Parent) Labels {
		return Labels{"dst": name}.With(m.meta("backend", name), parent.labels())
	}
	name := strings.Join([]string{target, parent.Kind, parent.Namespace, parent.Name, parent.Port, parent.SectionName}, " ")
	l := m.limited(outboundBalancers, name, labels(target, parent), func(Labels) labelSet {
		return fixed(labels("", Parent{Kind: "default"}))
	})
	states := &endpointStates{family: f.endpoints, labels: l}
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

// endpointStates is the gauge of the number of endpoints, by the label endpoint_state.
// Several balancers may share the gauge. Its value is then the sum of the numbers of these
// balancers. When the context of a balancer ends, its numbers are subtracted from the
// gauge.
type endpointStates struct {
	family *family[*gaugeValue]
	labels labelSet

	mu     sync.Mutex
	shares []*share // one for each state
}

func (e *endpointStates) With(label ...string) metrics.Gauge {
	s := &share{series: e.family.lazy(e.labels.with(Labels{"endpoint_state": label[1]}))}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shares = append(e.shares, s)
	return s
}

func (*endpointStates) Set(float64) {}
func (*endpointStates) Add(float64) {}

func (e *endpointStates) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.shares {
		s.end()
	}
}

// queueWait is the histogram of the time that requests waited in a queue. It also counts
// the requests that have left the queue.
type queueWait struct {
	seconds
	queued *handle[*counterValue]
}

func (w queueWait) With(...string) metrics.Histogram { return w }

func (w queueWait) Observe(ms float64) {
	w.queued.get().Inc()
	w.seconds.Observe(ms)
}
