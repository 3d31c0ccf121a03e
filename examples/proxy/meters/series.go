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

// family has all series of one metric. Its series may have different label names. It is an
// unchecked collector of Prometheus, because a checked one requires the same label names
// for all series.
//
// A series expires when [Config].RetainIdle has passed since its last write. Two kinds of
// series do not expire: gauges that are not 0, and the series of a permanent family.
type family[V value] struct {
	meters    *Meters
	desc      *prometheus.Desc
	create    func() V
	permanent bool

	mu     sync.Mutex
	series map[seriesKey]*series[V]
}

// series is one value with fixed labels. It is a [prometheus.Metric]. The metrics of the
// Prometheus library are not used, because each of them has its own description, which is
// larger than all its other data.
type series[V value] struct {
	desc       *prometheus.Desc
	labels     seriesKey
	value      V
	state      atomic.Int32
	overflow   bool        // shared by all names beyond the limit
	named      *baseLabels // has the limited name in the labels; nil without such a name
	quietSince time.Time   // time of the first sweep after the last write; guarded by family.mu
}

// seriesKey has the labels of a series in two parts, as results of [Labels.key]. The part
// base is the same string for all series of an endpoint or route, so that they share its
// memory. The labels in the other part distinguish these series.
type seriesKey struct{ base, more string }

// Desc is part of [prometheus.Metric].
func (s *series[V]) Desc() *prometheus.Desc { return s.desc }

// Write is part of [prometheus.Metric].
func (s *series[V]) Write(out *dto.Metric) error {
	labels := append(labelPairs(s.labels.base), labelPairs(s.labels.more)...)
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	out.Label = labels
	s.value.write(out)
	return nil
}

// The states of a series, for its expiry.
const (
	quiet   int32 = iota // not written since the last sweep
	written              // written since the last sweep
	expired              // not exported any more; writers must bind another series
)

// use marks s as written. It returns false if s has expired. The caller must then bind
// another series.
func (s *series[V]) use() bool {
	state := s.state.Load()
	return state == written || state == quiet && s.state.CompareAndSwap(quiet, written)
}

// handle refers to a series, for one part of the proxy that writes to it. The first write
// binds the handle to the series. If the series expires, the next write binds the handle
// to a new series. Every other write costs two atomic loads in addition to the write
// itself.
type handle[V value] struct {
	family *family[V]
	labels labelSet
	bound  atomic.Pointer[series[V]]
}

// get returns the counter, gauge or histogram of the series, to which the caller can
// write. Call it again for each write, because the series may have expired since the last
// write.
func (h *handle[V]) get() V {
	s := h.bound.Load()
	for s == nil || !s.use() {
		s = h.family.bind(h.labels)
		h.bound.Store(s)
	}
	return s.value
}

// lazy returns a handle of the series with the labels l. The series is not exported before
// its first write.
func (f *family[V]) lazy(l labelSet) *handle[V] { return &handle[V]{family: f, labels: l} }

// now returns a handle of the series with the labels l. The series is exported at once,
// with the value 0.
func (f *family[V]) now(l labelSet) *handle[V] {
	h := f.lazy(l)
	h.get()
	return h
}

// bind returns the series with the labels l, and makes it if it does not exist. l may
// contain a name, such as that of a destination, of which only a limited number have
// separate series. If the limit is reached and the name is new, bind returns the series
// that all such names share.
func (f *family[V]) bind(l labelSet) *series[V] {
	f.meters.sweepIfDue()
	overflow := false
	for l.limit != nil && !l.limit.take(l.name) {
		l.baseLabels, overflow = l.beyond(), true
	}
	key := seriesKey{l.labels, l.more}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.series[key]
	switch {
	case s == nil:
		s = &series[V]{desc: f.desc, labels: key, value: f.create(), overflow: overflow}
		if l.limit != nil {
			s.named = l.baseLabels
		}
		f.series[key] = s
	case l.limit != nil:
		l.limit.release(l.name) // the series has the name already
	}
	s.state.Store(written)
	return s
}

// sweep removes the series that have expired. It also replaces each changed series, except
// a gauge, that names beyond a limit share. Each of these names then looks up its series
// again at its next write. The name gets a separate series if removed names have made room
// for it.
func (f *family[V]) sweep(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, s := range f.series {
		switch {
		case s.state.CompareAndSwap(written, quiet):
			s.quietSince = now
			if s.overflow && !isGauge(s.value) {
				next := &series[V]{desc: s.desc, labels: key, value: s.value, quietSince: now, overflow: true, named: s.named}
				s.state.Store(expired)
				f.series[key] = next
			}
		case f.permanent, now.Sub(s.quietSince) < f.meters.retain, isOpen(s.value):
		case s.state.CompareAndSwap(quiet, expired):
			delete(f.series, key)
			if s.named != nil {
				s.named.limit.release(s.named.name)
			}
		}
	}
}

// Describe is part of [prometheus.Collector]. It sends nothing, because f is unchecked.
func (f *family[V]) Describe(chan<- *prometheus.Desc) {}

// Collect is part of [prometheus.Collector]. It sends all series that have not expired.
func (f *family[V]) Collect(to chan<- prometheus.Metric) {
	f.sweep(time.Now())
	f.mu.Lock()
	shown := slices.Collect(maps.Values(f.series))
	f.mu.Unlock()
	for _, s := range shown {
		to <- s
	}
}

// newFamily returns a family and registers it with m. create makes the value of a series.
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

// histograms returns a family of histograms. bounds are the upper bounds of the buckets,
// in ascending order.
func (m *Meters) histograms(name, help string, bounds ...float64) *family[*histogramValue] {
	return newFamily(m, name, help, func() *histogramValue { return newHistogramValue(bounds) })
}

// permanent makes the series of f never expire, and returns f.
func permanent[V value](f *family[V]) *family[V] {
	f.permanent = true
	return f
}

// sweepIfDue removes expired series if the last sweep is at least an eighth of the
// retention time ago. It limits the memory of a proxy that is not scraped, because
// otherwise only a scrape removes series.
func (m *Meters) sweepIfDue() {
	now, last := time.Now(), m.lastSweep.Load()
	if now.UnixNano()-last < int64(m.retain/8) || !m.lastSweep.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	for _, sweep := range m.sweeps {
		sweep(now)
	}
}

// labelSet is the labels of a series, in two parts without a common label. Other series may
// have the same baseLabels. The labels in the other part distinguish these series.
type labelSet struct {
	*baseLabels
	more string // the result of Labels.key
}

// baseLabels is the part of the labels that several series share. These labels may contain
// one name that clients or the application choose. The number of such names is limited.
type baseLabels struct {
	labels string                     // the result of Labels.key
	limit  *names                     // nil if the labels contain no such name
	name   string                     // the name; "" if limit is nil
	rest   func(own Labels) labelSet  // returns the labels to use instead of own, if the name is beyond the limit
	made   atomic.Pointer[baseLabels] // the result of rest; nil before the first call
}

// beyond returns the labels to use instead of b when the limit of names is reached.
func (b *baseLabels) beyond() *baseLabels {
	made := b.made.Load()
	if made == nil {
		made = b.rest(labelsOf(b.labels)).baseLabels
		b.made.Store(made)
	}
	return made
}

// fixed returns a labelSet with the labels l, which contain no name that must be limited.
func fixed(l Labels) labelSet { return labelSet{baseLabels: &baseLabels{labels: l.key()}} }

// limited returns a labelSet for name, such as the name of a destination. The first names
// of each kind, up to a limit, have separate series with the given labels. All further
// names of the kind share series. The function rest returns the labels of a shared series.
// Its argument is a copy of the given labels.
func (m *Meters) limited(kind, name string, labels Labels, rest func(own Labels) labelSet) labelSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	limit := m.limits[kind]
	if limit == nil {
		limit = &names{most: maxNames, series: map[string]int{}}
		switch kind {
		case peers(Outbound, Source), peers(Outbound, Destination), routeParents(Outbound), outboundBalancers:
			limit.most = maxTargets
		}
		m.limits[kind] = limit
	}
	return labelSet{baseLabels: &baseLabels{labels: labels.key(), limit: limit, name: name, rest: rest}}
}

// with returns a copy of l with the labels in more added.
func (l labelSet) with(more Labels) labelSet {
	l.more += more.key()
	return l
}

// The maximum number of names of one kind that have separate series. Without a limit, a
// client such as a port scanner could fill the memory. The limit of targets and endpoints is
// lower, because a target adds 19 KB to a scrape.
const (
	maxNames   = 1000
	maxTargets = 200
)

// names limits the names of one kind. The map series contains each name that has separate
// series, with the number of these series. A name is removed when its last series has
// expired.
type names struct {
	most   int // maximum number of names
	mu     sync.Mutex
	series map[string]int // number of series by name
}

// take adds 1 to the number of series of name. It returns false, and adds nothing, if
// name is new and the maximum number of names is reached.
func (n *names) take(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.series[name] == 0 && len(n.series) >= n.most {
		return false
	}
	n.series[name]++
	return true
}

// release subtracts 1 from the number of series of name. If the number is then 0, it
// removes the name, so that another name can have separate series.
func (n *names) release(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.series[name]--; n.series[name] == 0 {
		delete(n.series, name)
	}
}

// lookup caches a value for each key. A key is a property of requests or connections, such
// as the client. The cache is cleared when it has maxNames keys. A value that is needed
// later is then made again.
type lookup[K comparable, V any] struct {
	make func(K) V

	mu   sync.RWMutex
	made map[K]V
}

func newLookup[K comparable, V any](mk func(K) V) *lookup[K, V] {
	return &lookup[K, V]{make: mk, made: map[K]V{}}
}

// of returns the value of key, and makes it if it is not in the cache.
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

// byLabel caches one series for each combination of values of some labels, such as the
// status of a response. A key of type K is one such combination. A look-up checks the last used
// series first, because most requests need the same series.
type byLabel[K comparable, V any] struct {
	last atomic.Pointer[labelledSeries[K, V]]
	all  *lookup[K, *labelledSeries[K, V]]
}

// labelledSeries is an entry of the cache [byLabel]: one series, and the values of its
// labels as key.
type labelledSeries[K comparable, V any] struct {
	key    K
	series V
}

func newByLabel[K comparable, V any](mk func(K) V) *byLabel[K, V] {
	return &byLabel[K, V]{all: newLookup(func(key K) *labelledSeries[K, V] { return &labelledSeries[K, V]{key, mk(key)} })}
}

// of returns the series of key, and makes it if it does not exist.
func (b *byLabel[K, V]) of(key K) V {
	if s := b.last.Load(); s != nil && s.key == key {
		return s.series
	}
	s := b.all.of(key)
	b.last.Store(s)
	return s.series
}
