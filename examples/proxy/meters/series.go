package meters

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// family is all series of one metric name. As an unchecked Prometheus collector it
// describes nothing, so that its series may have different labels.
//
// A series expires when Config.RetainIdle has passed since its last write. A gauge that
// is not 0, and the series of a permanent family, do not expire.
type family[M prometheus.Metric] struct {
	meters    *Meters
	create    func(Labels) M
	permanent bool

	mu     sync.Mutex
	series map[string]*series[M] // by Labels.key
}

// series is one metric with its labels.
type series[M prometheus.Metric] struct {
	metric     M
	state      atomic.Int32
	quietSince time.Time // guarded by family.mu
	release    func()    // releases the name, see names; nil without a name
	overflow   bool      // the series of all names beyond the limit
}

// The states of a series.
const (
	quiet   int32 = iota // not written since the last sweep
	written              // written since the last sweep
	expired              // not shown any more
)

// use marks s as written. It returns false if the series has expired, so that the caller
// must bind again.
func (s *series[M]) use() bool {
	state := s.state.Load()
	return state == written || state == quiet && s.state.CompareAndSwap(quiet, written)
}

// handle is a writer's reference to a series. The first write binds it, and so does the
// first write after the series has expired. Later writes cost two atomic loads in
// addition to those of the metric.
type handle[M prometheus.Metric] struct {
	family *family[M]
	labels labelSet
	bound  atomic.Pointer[series[M]]
}

// get returns the metric for one write.
func (h *handle[M]) get() M {
	s := h.bound.Load()
	for s == nil || !s.use() {
		s = h.family.bind(h.labels)
		h.bound.Store(s)
	}
	return s.metric
}

// lazy returns the handle of a series that is shown after its first write.
func (f *family[M]) lazy(l labelSet) *handle[M] { return &handle[M]{family: f, labels: l} }

// now returns the handle of a series that is shown at once.
func (f *family[M]) now(l labelSet) *handle[M] {
	h := f.lazy(l)
	h.get()
	return h
}

func (f *family[M]) bind(l labelSet) *series[M] {
	f.meters.sweepIfDue()
	named := l.limit != nil && l.limit.take(l.name)
	labels := l.labels
	if l.limit != nil && !named {
		labels = l.rest
	}
	labels = labels.clean()
	key := labels.key()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.series[key]
	switch {
	case s == nil:
		s = &series[M]{metric: f.create(labels), overflow: l.limit != nil && !named}
		if named {
			s.release = func() { l.limit.release(l.name) }
		}
		f.series[key] = s
	case named:
		l.limit.release(l.name) // the series has the name already
	}
	s.state.Store(written)
	return s
}

// sweep removes the expired series. Writers to a series of overflow bind again, because
// their names may have a place now.
func (f *family[M]) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, s := range f.series {
		switch {
		case s.state.CompareAndSwap(written, quiet):
			s.quietSince = now
			if s.overflow && !isGauge(s.metric) {
				next := &series[M]{metric: s.metric, quietSince: now, overflow: true}
				s.state.Store(expired)
				f.series[key] = next
			}
		case f.permanent, now.Sub(s.quietSince) < f.meters.retain, isOpen(s.metric):
		case s.state.CompareAndSwap(quiet, expired):
			delete(f.series, key)
			if s.release != nil {
				s.release()
			}
		}
	}
}

func isGauge(m prometheus.Metric) bool {
	_, ok := m.(prometheus.Gauge)
	return ok
}

// isOpen reports whether m is a gauge that is not 0.
func isOpen(m prometheus.Metric) bool {
	var value dto.Metric
	return isGauge(m) && m.Write(&value) == nil && value.GetGauge().GetValue() != 0
}

// Describe sends nothing, see family.
func (f *family[M]) Describe(chan<- *prometheus.Desc) {}

// Collect sends all series that have not expired.
func (f *family[M]) Collect(to chan<- prometheus.Metric) {
	f.sweep(time.Now())
	f.mu.Lock()
	shown := make([]prometheus.Metric, 0, len(f.series))
	for _, s := range f.series {
		shown = append(shown, s.metric)
	}
	f.mu.Unlock()
	for _, metric := range shown {
		to <- metric
	}
}

func newFamily[M prometheus.Metric](m *Meters, create func(Labels) M) *family[M] {
	f := &family[M]{meters: m, create: create, series: map[string]*series[M]{}}
	m.registry.MustRegister(f)
	m.sweeps = append(m.sweeps, f.sweep)
	return f
}

func (m *Meters) counters(name, help string) *family[prometheus.Counter] {
	return newFamily(m, func(l Labels) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: prometheus.Labels(l)})
	})
}

func (m *Meters) gauges(name, help string) *family[prometheus.Gauge] {
	return newFamily(m, func(l Labels) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels(l)})
	})
}

func (m *Meters) histograms(name, help string, buckets ...float64) *family[prometheus.Histogram] {
	return newFamily(m, func(l Labels) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, ConstLabels: prometheus.Labels(l), Buckets: buckets,
		})
	})
}

// permanent marks f, so that its series do not expire, and returns it.
func permanent[M prometheus.Metric](f *family[M]) *family[M] {
	f.permanent = true
	return f
}

// sweepIfDue sweeps all families if nothing was swept for an eighth of the retention time.
// Without scrapes, memory would otherwise not be bounded.
func (m *Meters) sweepIfDue() {
	now, last := time.Now(), m.lastSweep.Load()
	if now.UnixNano()-last < int64(m.retain/8) || !m.lastSweep.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	for _, sweep := range m.sweeps {
		sweep(now)
	}
}

// labelSet is the labels of a series. With a limit, they contain a name that clients or
// the application choose.
type labelSet struct {
	labels Labels
	limit  *names // nil without a name
	name   string
	rest   Labels // replaces labels if the name is beyond the limit
}

// fixed returns labels without a name.
func fixed(l Labels) labelSet { return labelSet{labels: l} }

// limited returns labels with a name. The names of one kind share a limit.
func (m *Meters) limited(kind, name string, labels, rest Labels) labelSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	limit := m.limits[kind]
	if limit == nil {
		limit = &names{series: map[string]int{}}
		m.limits[kind] = limit
	}
	return labelSet{labels: labels, limit: limit, name: name, rest: rest}
}

// with returns l and more. For a name in both, it has the value of more.
func (l labelSet) with(more Labels) labelSet {
	if len(more) > 0 {
		l.labels = l.labels.With(more)
		if l.limit != nil {
			l.rest = l.rest.With(more)
		}
	}
	return l
}

// maxNames is the maximum number of names of one kind that have their own series. A port
// scan would otherwise fill the memory.
const maxNames = 1000

// names are the names of one kind that have series. A name has its place until its last
// series has expired.
type names struct {
	mu     sync.Mutex
	series map[string]int // number of series by name
}

// take takes a place for one series of name. It returns false if no place is free.
func (n *names) take(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.series[name] == 0 && len(n.series) >= maxNames {
		return false
	}
	n.series[name]++
	return true
}

func (n *names) release(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.series[name]--; n.series[name] == 0 {
		delete(n.series, name)
	}
}

// lookup is a cache of series by a key of a request or connection. It is emptied when it
// has maxNames keys, because their handles can be made again.
type lookup[K comparable, V any] struct {
	make func(K) V

	mu   sync.RWMutex
	made map[K]V
}

func newLookup[K comparable, V any](mk func(K) V) *lookup[K, V] {
	return &lookup[K, V]{make: mk, made: map[K]V{}}
}

func (l *lookup[K, V]) of(key K) V {
	l.mu.RLock()
	v, ok := l.made[key]
	l.mu.RUnlock()
	if ok {
		return v
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.made) >= maxNames {
		clear(l.made)
	}
	v = l.make(key)
	l.made[key] = v
	return v
}

// byLabel has the series by the labels of an outcome, which have few values. It remembers
// the last one, because most outcomes have the same labels as the previous one.
type byLabel[K comparable, V any] struct {
	make func(K) V
	last atomic.Pointer[labelledSeries[K, V]]
	all  sync.Map // K → *labelledSeries[K, V]
}

type labelledSeries[K comparable, V any] struct {
	key    K
	series V
}

func newByLabel[K comparable, V any](mk func(K) V) *byLabel[K, V] { return &byLabel[K, V]{make: mk} }

func (b *byLabel[K, V]) of(key K) V {
	if s := b.last.Load(); s != nil && s.key == key {
		return s.series
	}
	found, ok := b.all.Load(key)
	if !ok {
		found, _ = b.all.LoadOrStore(key, &labelledSeries[K, V]{key, b.make(key)})
	}
	s := found.(*labelledSeries[K, V]) //nolint:errcheck,forcetypeassert // stored above
	b.last.Store(s)
	return s.series
}
