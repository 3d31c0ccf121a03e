package meters

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// family contains all series of one metric, which may have different label names. Prometheus
// requires the same names from a checked collector, so a family is an unchecked one.
//
// A series expires when [Config].RetainIdle has passed since its last write, unless it is a gauge
// that is not 0 or belongs to a permanent family.
type family[V value] struct {
	meters    *Meters
	desc      *prometheus.Desc
	create    func() V
	permanent bool // its series never expire

	mu     sync.Mutex
	series map[seriesKey]*series[V]
}

// series is one value with fixed labels. It implements [prometheus.Metric] itself, because each of
// the Prometheus library's metrics has its own description, which is larger than all its other
// data.
type series[V value] struct {
	desc       *prometheus.Desc
	labels     seriesKey
	value      V
	state      atomic.Int32
	overflow   bool        // shared by all names beyond the limit
	named      *baseLabels // contains the limited name; nil without one
	quietSince time.Time   // when the first sweep after the last write was; guarded by family.mu
}

// seriesKey contains a series's labels in two parts, as results of [Labels.key]. All series of an
// endpoint or route share the string base to save memory, and differ in more.
type seriesKey struct{ base, more string }

// Desc implements [prometheus.Metric].
func (s *series[V]) Desc() *prometheus.Desc { return s.desc }

// Write implements [prometheus.Metric].
func (s *series[V]) Write(metric *dto.Metric) error {
	// Prometheus requires sorted labels. The two parts are only sorted by themselves.
	labels := append(labelPairs(s.labels.base), labelPairs(s.labels.more)...)
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	metric.Label = labels
	s.value.write(metric)
	return nil
}

// States of a series.
const (
	quiet   int32 = iota // not written since the last sweep
	written              // written since the last sweep
	expired              // no longer exported; writers must bind another series
)

// use marks s as written. It returns false if s has expired, and the caller must bind another
// series.
func (s *series[V]) use() bool {
	state := s.state.Load()
	return state == written || state == quiet && s.state.CompareAndSwap(quiet, written)
}

// handle is a writer's reference to a series. Its first write binds it to the series, and so does
// the first one after the series has expired. All other writes only cost two additional atomic
// loads.
type handle[V value] struct {
	family *family[V]
	labels labelSet
	bound  atomic.Pointer[series[V]]
}

// get returns the series's counter, gauge or histogram. It must be called for each write, because
// the series may have expired since the last one.
func (h *handle[V]) get() V {
	s := h.bound.Load()
	// use fails if the series has expired since. Then bind another one, which may expire too.
	for s == nil || !s.use() {
		s = h.family.bind(h.labels)
		h.bound.Store(s)
	}
	return s.value
}

// lazy returns a handle for the series with the labels l, which is exported after its first write.
func (f *family[V]) lazy(l labelSet) *handle[V] { return &handle[V]{family: f, labels: l} }

// eager returns a handle for the series with the labels l, which is exported immediately, with the
// value 0.
func (f *family[V]) eager(l labelSet) *handle[V] {
	h := f.lazy(l)
	h.get()
	return h
}

// bind returns the series with the labels l, and makes it if necessary. l may contain a name, such
// as a destination's, of which only a limited number get series of their own. A new name beyond the
// limit gets the series that all such names share.
func (f *family[V]) bind(l labelSet) *series[V] {
	f.meters.sweepIfDue()
	// overflow tells that l's own name has no series, but shares that of all names beyond the limit.
	overflow := false
	// The labels that replace l may themselves contain a limited name, so this repeats until one has room.
	for l.limit != nil && !l.limit.take(l.name) {
		l.baseLabels = l.beyondLimit()
		overflow = true
	}
	key := seriesKey{l.labels, l.more}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.series[key]
	switch {
	// This is the first write since the series was made or expired.
	case s == nil:
		s = &series[V]{desc: f.desc, labels: key, value: f.create(), overflow: overflow}
		if l.limit != nil {
			s.named = l.baseLabels
		}
		f.series[key] = s
	// take has counted another series, but it already exists.
	case l.limit != nil:
		l.limit.release(l.name) // the series already holds the name
	}
	// A new series must not expire before its first write.
	s.state.Store(written)
	return s
}

// sweep removes expired series. A series that names beyond a limit share is replaced if it has
// changed and is not a gauge. Its names then have to look up their series again at their next
// write, and get one of their own if there is room by then.
func (f *family[V]) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, s := range f.series {
		// The order matters: a series that was written since the last sweep stays, whatever else holds.
		switch {
		case s.state.CompareAndSwap(written, quiet):
			s.quietSince = now
			if s.overflow && !isGauge(s.value) {
				// The copy shares the value, so no count is lost. Handles of the old series must bind again.
				next := &series[V]{desc: s.desc, labels: key, value: s.value, quietSince: now, overflow: true, named: s.named}
				s.state.Store(expired)
				f.series[key] = next
			}
		// These do not expire yet. isOpen protects gauges that will still be decreased.
		case f.permanent, now.Sub(s.quietSince) < f.meters.retain, isOpen(s.value):
		// The swap fails if a writer was faster. Then the series stays.
		case s.state.CompareAndSwap(quiet, expired):
			delete(f.series, key)
			if s.named != nil {
				s.named.limit.release(s.named.name)
			}
		}
	}
}

// Describe implements [prometheus.Collector]. It sends nothing, because f is unchecked.
func (f *family[V]) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (f *family[V]) Collect(metrics chan<- prometheus.Metric) {
	// A scrape is a good time to expire series.
	f.sweep(time.Now())
	// Copy under the lock, because the receiver may be slow.
	f.mu.Lock()
	snapshot := slices.Collect(maps.Values(f.series))
	f.mu.Unlock()
	for _, s := range snapshot {
		metrics <- s
	}
}

// newFamily registers a family with m. create makes a series's value.
func newFamily[V value](m *Meters, name, help string, create func() V) *family[V] {
	f := &family[V]{meters: m, desc: prometheus.NewDesc(name, help, nil, nil), create: create, series: map[seriesKey]*series[V]{}}
	m.registry.MustRegister(f)
	m.sweeps = append(m.sweeps, f.sweep)
	return f
}

func (m *Meters) counters(name, help string) *family[*counterValue] {
	return newFamily(m, name, help, func() *counterValue { return new(counterValue) })
}

func (m *Meters) gauges(name, help string) *family[*gaugeValue] {
	return newFamily(m, name, help, func() *gaugeValue { return new(gaugeValue) })
}

// histograms returns a family of histograms with ascending upper bounds.
func (m *Meters) histograms(name, help string, bounds ...float64) *family[*histogramValue] {
	return newFamily(m, name, help, func() *histogramValue { return newHistogramValue(bounds) })
}

// permanent marks f's series to never expire, and returns f.
func permanent[V value](f *family[V]) *family[V] {
	f.permanent = true
	return f
}

// sweepIfDue removes expired series if the last sweep is at least an eighth of the retention time
// ago. Usually scrapes do that, but a proxy that is not scraped must not fill its memory.
func (m *Meters) sweepIfDue() {
	now := time.Now()
	last := m.lastSweep.Load()
	// CompareAndSwap lets only one of several goroutines sweep.
	if now.UnixNano()-last < int64(m.retain/8) || !m.lastSweep.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	for _, sweep := range m.sweeps {
		sweep(now)
	}
}

// labelSet contains a series's labels in two parts. Several series may share their baseLabels, and
// differ in more.
type labelSet struct {
	*baseLabels
	more string // the result of Labels.key
}

// baseLabels are labels that several series share. They may contain one name that clients or the
// application choose, whose number is therefore limited.
type baseLabels struct {
	labels    string                     // the result of Labels.key
	limit     *names                     // nil if the labels contain no such name
	name      string                     // "" if limit is nil
	rest      func(l Labels) labelSet    // returns the labels that replace l beyond the limit
	restCache atomic.Pointer[baseLabels] // rest's result; nil before the first call
}

// beyondLimit returns the labels that replace b beyond the limit.
func (b *baseLabels) beyondLimit() *baseLabels {
	// Two goroutines may both call rest, whose results are equal.
	rest := b.restCache.Load()
	if rest == nil {
		rest = b.rest(labelsOf(b.labels)).baseLabels
		b.restCache.Store(rest)
	}
	return rest
}

// fixed returns a labelSet for labels without a name that must be limited.
func fixed(l Labels) labelSet { return labelSet{baseLabels: &baseLabels{labels: l.key()}} }

// limited returns a labelSet for name, such as a destination's. Up to a limit, names of each kind
// get series of their own with the given labels. All further names of the kind share series with
// the labels that rest returns for a copy of labels.
func (m *Meters) limited(kind, name string, labels Labels, rest func(Labels) labelSet) labelSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	limit := m.limits[kind]
	if limit == nil {
		limit = &names{capacity: maxNames, series: map[string]int{}}
		switch kind {
		// These kinds belong to targets and endpoints, whose series are many per name.
		case peers(Outbound, Source), peers(Outbound, Destination), routeParents(Outbound), outboundBalancers:
			limit.capacity = maxTargets
		}
		m.limits[kind] = limit
	}
	return labelSet{baseLabels: &baseLabels{labels: labels.key(), limit: limit, name: name, rest: rest}}
}

// with returns a copy of l with more labels.
func (l labelSet) with(more Labels) labelSet {
	l.more += more.key()
	return l
}

// Limits for names of one kind that get series of their own. Without them, a client such as a port
// scanner could fill the memory. The limit for targets and endpoints is lower, because a target
// adds 19 KB to a scrape.
const (
	maxNames   = 1000
	maxTargets = 200
)

// names limits the names of one kind that get series of their own. A name is removed when its last
// series has expired.
type names struct {
	capacity int // how many names may have series
	mu       sync.Mutex
	series   map[string]int // how many series each name has
}

// take counts another series for name. It returns false if name is new and there is no room.
func (n *names) take(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A name that already has a series may always get another one.
	if n.series[name] == 0 && len(n.series) >= n.capacity {
		return false
	}
	n.series[name]++
	return true
}

// release removes a series of name. If it was the last one, another name may take its place.
func (n *names) release(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.series[name]--; n.series[name] == 0 {
		delete(n.series, name)
	}
}

// lookup caches a value for each key. Keys are properties of requests or connections, such as the
// client. When the cache has maxNames keys, it is cleared, and values are made again when they are
// needed.
type lookup[K comparable, V any] struct {
	make func(K) V

	mu   sync.RWMutex
	made map[K]V
}

func newLookup[K comparable, V any](mk func(K) V) *lookup[K, V] {
	return &lookup[K, V]{make: mk, made: map[K]V{}}
}

// get returns key's value, and makes it if necessary.
func (l *lookup[K, V]) get(key K) V {
	l.mu.RLock()
	v, ok := l.made[key]
	l.mu.RUnlock()
	// Usually the value exists, and readers do not block each other.
	if ok {
		return v
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Counts are not lost: the values are handles to series that still exist.
	if len(l.made) >= maxNames {
		clear(l.made)
	}
	// Another goroutine may have made the value in between. Making it again is harmless.
	v = l.make(key)
	l.made[key] = v
	return v
}

// byLabel caches a series for each combination K of label values, such as the response's status. It
// checks the last one first, because most requests need the same series.
type byLabel[K comparable, V any] struct {
	last atomic.Pointer[labelledSeries[K, V]]
	all  *lookup[K, *labelledSeries[K, V]]
}

// labelledSeries is an entry in [byLabel].
type labelledSeries[K comparable, V any] struct {
	key    K
	series V
}

func newByLabel[K comparable, V any](mk func(K) V) *byLabel[K, V] {
	return &byLabel[K, V]{all: newLookup(func(key K) *labelledSeries[K, V] { return &labelledSeries[K, V]{key, mk(key)} })}
}

// get returns key's series, and makes it if necessary.
func (b *byLabel[K, V]) get(key K) V {
	// Most requests end in the same way, which saves the lookup.
	if s := b.last.Load(); s != nil && s.key == key {
		return s.series
	}
	s := b.all.get(key)
	b.last.Store(s)
	return s.series
}
