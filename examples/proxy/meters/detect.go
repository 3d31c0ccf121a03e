package meters

import (
	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer/tcplayer"
)

// detectFamilies are the metrics of protocol detection.
type detectFamilies struct {
	durations *family[prometheus.Histogram]
	results   *family[prometheus.Counter]
}

func (m *Meters) detectFamilies(d Direction) detectFamilies {
	name := string(d) + "_tcp_detect_http_"
	return detectFamilies{
		durations: m.histograms(name+"duration_seconds", "Time taken for protocol detection.", 0.001, 0.1),
		results:   m.counters(name+"results_total", "Protocol detection results."),
	}
}

// Detect returns the instruments of tcplayer.Detect with these labels:
// inbound_tcp_detect_http_duration_seconds, inbound_tcp_detect_http_results_total by
// result, and their outbound counterparts. All series are shown from then on.
func (m *Meters) Detect(d Direction, labels Labels) tcplayer.DetectInstruments {
	return m.detect(m.always, d, labels)
}

func (m *Meters) detect(l *seriesLease, d Direction, labels Labels) tcplayer.DetectInstruments {
	f := m.detects[d]
	return tcplayer.DetectInstruments{
		Latency: seconds{f.durations.bind(l, labels)},
		Results: newLabelled("result", binder{l, labels}.counters(f.results), asItIs),
	}
}

// Detect is [Meters.Detect] for the connections to the destination, with parent_* of the
// name in its profile. The series of a name are shown from the first connection until the
// retention time after the last. Inbound it counts nothing.
func (r *Routes) Detect() tcplayer.DetectInstruments {
	return tcplayer.DetectInstruments{Latency: detectedIn{r}, Results: detectedAs{r, nil}}
}

type detectedIn struct{ *Routes }

func (d detectedIn) With(...string) metrics.Histogram { return d }

func (d detectedIn) Observe(ms float64) {
	if c := d.conns.Load(); c != nil {
		c.looked().Latency.Observe(ms)
	}
}

type detectedAs struct {
	*Routes
	result []string // the label; nil: not bound yet
}

func (d detectedAs) With(label ...string) metrics.Counter { return detectedAs{d.Routes, label} }

func (d detectedAs) Add(delta float64) {
	if c := d.conns.Load(); c != nil && d.result != nil {
		c.looked().Results.With(d.result...).Add(delta)
	}
}
