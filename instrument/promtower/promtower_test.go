package promtower_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/instrument/promtower"
	"github.com/gotower/gotower/internal/grafanatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gathered returns the metrics of a registry by name.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := reg.Gather()
	require.NoError(t, err)
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

// value returns the value of the metric of a target that has the label, or -1.
func value(f *dto.MetricFamily, target, label string) float64 {
	for _, m := range f.GetMetric() {
		labels := make(map[string]bool)
		for _, l := range m.GetLabel() {
			labels[l.GetName()+"="+l.GetValue()] = true
		}
		if labels["target="+target] && (label == "" || labels[label]) {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return -1
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := promtower.New(reg)
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String()), httpclient.WithMetrics(m))
	httpclient.New(t.Context(), "other", httpclient.WithAddrs("127.0.0.1:1"), httpclient.WithMetrics(m))
	m.Route("books", "").Requests.Add(3)
	rsp, err := (&http.Client{Transport: web}).Get("http://web/")
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Eventually(t, func() bool { return value(gathered(t, reg)["gotower_in_flight_requests"], "web", "") == 0 }, time.Minute, time.Millisecond)
	all := gathered(t, reg)
	for _, tt := range []struct {
		name, target, label string
		want                float64
	}{
		{"gotower_requests_total", "web", "", 1},
		{"gotower_requests_total", "other", "", 0},
		{"gotower_requests_total", "", "route=books", 3},
		{"gotower_responses_total", "web", "class=success", 1},
		{"gotower_responses_total", "web", "class=failure", 0},
		{"gotower_retries_total", "web", "", 1},
		{"gotower_latency_seconds", "web", "", 1},
		{"gotower_endpoints", "web", "endpoint_state=ready", 1},
		{"gotower_endpoint_updates_total", "web", "op=Reset", 1},
	} {
		assert.Equal(t, tt.want, value(all[tt.name], tt.target, tt.label), "%+v", tt)
	}
	for _, latency := range all["gotower_latency_seconds"].GetMetric() {
		assert.Less(t, latency.GetHistogram().GetSampleSum(), 60.0, "seconds")
	}
	c := m.Layer("web").Requests
	assert.Zero(t, testing.AllocsPerRun(100, func() { c.Add(1) }))
	assert.Panics(t, func() { promtower.New(nil) })
}

// The dashboard uses only metrics and labels that exist.
func TestGrafana(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := promtower.New(reg)
	layers, balancer := m.Layer("web"), m.Balance("web")
	layers.Responses.With("class", "success").Add(0)
	layers.LayerRejections.With("layer", "limit").Add(0)
	layers.Timeouts.With("limit", "total").Add(0)
	layers.RetriesSkipped.With("reason", "budget").Add(0)
	balancer.Endpoints.With("endpoint_state", "ready").Set(1)
	balancer.Ejections.With("cause", "outlier").Add(0)
	page := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	dashboard, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	assert.Empty(t, grafanatest.Missing(t, dashboard, grafanatest.Parse(t, page.Body.String()), false))
}

// The series of a target that is gone are removed, and those of others stay.
func TestForget(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := promtower.New(reg)
	for _, target := range []string{"web", "books"} {
		layers := m.Layer(target)
		layers.Requests.Add(1)
		layers.InFlight.Add(1)
		layers.Latency.Observe(1)
		m.Balance(target).Updates.With("op", "Add").Add(1)
	}
	m.Forget("web")
	m.Forget("unknown")
	for name, family := range gathered(t, reg) {
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				assert.NotEqual(t, "web", label.GetValue(), name)
			}
		}
	}
	all := gathered(t, reg)
	assert.InDelta(t, 1, value(all["gotower_requests_total"], "books", ""), 0)
	m.Layer("web").Requests.Add(1)
	assert.InDelta(t, 1, value(gathered(t, reg)["gotower_requests_total"], "web", ""), 0)
}
