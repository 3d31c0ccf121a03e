package meters

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// family is all series of one name. As an unchecked Prometheus collector it describes
// nothing, so that its series may have different labels.
type family[M prometheus.Metric] struct {
	make func(Labels) M

	mu     sync.Mutex
	series map[string]*series[M]
}

type series[M prometheus.Metric] struct {
	metric M
	users  int
}

func newFamily[M prometheus.Metric](m *Meters, create func(Labels) M) *family[M] {
	f := &family[M]{make: create, series: map[string]*series[M]{}}
	m.registry.MustRegister(f)
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

// bind returns the series with labels. It is shown until l ends.
func (f *family[M]) bind(l *seriesLease, labels Labels) M {
	labels = labels.clean()
	key := labels.key()
	f.mu.Lock()
	s := f.series[key]
	if s == nil {
		s = &series[M]{metric: f.make(labels)}
		f.series[key] = s
	}
	s.users++
	f.mu.Unlock()
	l.add(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(f.series, key)
		}
	})
	return s.metric
}

// Describe sends nothing, see family.
func (f *family[M]) Describe(chan<- *prometheus.Desc) {}

// Collect sends all series.
func (f *family[M]) Collect(to chan<- prometheus.Metric) {
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
