package meters

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer/tcplayer"
)

// detectFamilies are what came of looking which protocol clients speak.
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

// Detect returns the instruments of tcplayer.Detect:
// inbound_tcp_detect_http_duration_seconds, inbound_tcp_detect_http_results_total
// by result, and their like outbound. All are shown from then on.
func (m *Meters) Detect(d Direction) tcplayer.DetectInstruments {
	f := m.detects[d]
	return tcplayer.DetectInstruments{
		Latency: seconds{f.durations.bind(m.always, nil)},
		Results: newLabelled("result", binder{m.always, nil}.counters(f.results), asItIs),
	}
}
