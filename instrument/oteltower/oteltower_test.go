package oteltower_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/instrument/oteltower"
	"github.com/gotower/gotower/internal/grafanatest"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/layertest"
)

func get(t *testing.T, rt http.RoundTripper, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	rsp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	return rsp.StatusCode
}

// flaky answers 503 to the first request.
func flaky(t *testing.T, seen func(*http.Request)) string {
	t.Helper()
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen(r)
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestMetrics(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	m := oteltower.NewMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(flaky(t, func(*http.Request) {})), httpclient.WithMetrics(m))
	httpclient.New(t.Context(), "other", httpclient.WithAddrs("127.0.0.1:1"), httpclient.WithMetrics(m))
	assert.Equal(t, http.StatusOK, get(t, web, "http://web/"))
	require.Eventually(t, func() bool { return value(t, reader, "gotower.in_flight_requests", nil) == 0 }, time.Minute, time.Millisecond)
	for name, tt := range map[string]struct {
		label []string
		want  float64
	}{
		"gotower.requests":        {nil, 1},
		"gotower.responses":       {[]string{"class", "success"}, 1},
		"gotower.retries":         {nil, 1},
		"gotower.endpoints":       {[]string{"endpoint_state", "ready"}, 1},
		"gotower.retries_skipped": {[]string{"reason", "budget"}, 0},
		"gotower.latency":         {nil, 1},
	} {
		assert.Equal(t, tt.want, value(t, reader, name, tt.label), name)
	}
	c := m.Layer("web").Requests
	assert.Zero(t, testing.AllocsPerRun(100, func() { c.Add(1) }))
}

// value returns the value of a metric of the target web, or the count of a histogram.
func value(t *testing.T, reader *sdkmetric.ManualReader, name string, label []string) float64 {
	t.Helper()
	want := []attribute.KeyValue{attribute.String("target", "web")}
	if label != nil {
		want = append(want, attribute.String(label[0], label[1]))
	}
	set := attribute.NewSet(want...)
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &all))
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != name {
			continue
		}
		var points []metricdata.DataPoint[float64]
		switch d := m.Data.(type) {
		case metricdata.Sum[float64]:
			points = d.DataPoints
		case metricdata.Gauge[float64]:
			points = d.DataPoints
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				if p.Attributes.Equals(&set) {
					assert.Less(t, p.Sum, 60.0, "seconds")
					return float64(p.Count)
				}
			}
		}
		for _, p := range points {
			if p.Attributes.Equals(&set) {
				return p.Value
			}
		}
	}
	return -1
}

// The dashboard of promtower works with the names that Prometheus gives to the metrics: an
// underscore for each dot, the unit, and _total for a counter.
func TestMetricsDashboard(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	m := oteltower.NewMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	layers, balancer := m.Route("books", "web"), m.Balance("web")
	layers.Requests.Add(1)
	layers.Responses.With("class", "success").Add(0)
	layers.LayerRejections.With("layer", "limit").Add(0)
	layers.Timeouts.With("limit", "total").Add(0)
	layers.Retries.Add(0)
	layers.RetriesSkipped.With("reason", "budget").Add(0)
	layers.Latency.Observe(1)
	layers.QueueWait.Observe(1)
	for _, g := range []metrics.Gauge{layers.Budget, layers.InFlight, layers.QueueLength, layers.BreakerOpen} {
		g.Set(1)
	}
	balancer.Rejections.Add(0)
	balancer.Endpoints.With("endpoint_state", "ready").Set(1)
	balancer.Ejections.With("cause", "outlier").Add(0)
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	var series []grafanatest.Series
	for _, m := range all.ScopeMetrics[0].Metrics {
		name := strings.ReplaceAll(m.Name, ".", "_")
		add := func(attributes attribute.Set, more ...string) {
			labels := map[string]string{"__name__": name}
			for _, a := range attributes.ToSlice() {
				labels[string(a.Key)] = a.Value.AsString()
			}
			for _, l := range more {
				labels[l] = ""
			}
			series = append(series, grafanatest.Series{Labels: labels})
		}
		switch d := m.Data.(type) {
		case metricdata.Sum[float64]:
			name += "_total"
			for _, p := range d.DataPoints {
				add(p.Attributes)
			}
		case metricdata.Gauge[float64]:
			for _, p := range d.DataPoints {
				add(p.Attributes)
			}
		case metricdata.Histogram[float64]:
			require.Equal(t, "s", m.Unit)
			name += "_seconds_bucket"
			for _, p := range d.DataPoints {
				add(p.Attributes, "le")
			}
		}
	}
	dashboard, err := os.ReadFile("../promtower/grafana.json")
	require.NoError(t, err)
	assert.Empty(t, grafanatest.Missing(t, dashboard, series, false))
}

// A request has one trace: the span of the gateway, and below it one of each attempt.
func TestTrace(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	var sent atomic.Value
	addr := flaky(t, func(r *http.Request) { sent.Store(r.Header.Get("Traceparent")) })
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(addr), httpclient.WithEndpointLayer(oteltower.ClientTrace(provider)))
	gateway := httptest.NewServer(httplayer.Handler(oteltower.ServerTrace(provider)(web)))
	t.Cleanup(gateway.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gateway.URL+"/path", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	rsp, err := gateway.Client().Do(req)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, http.StatusOK, rsp.StatusCode)
	require.Eventually(t, func() bool { return len(exporter.GetSpans()) == 3 }, time.Minute, time.Millisecond)

	var server tracetest.SpanStub
	var clients []tracetest.SpanStub
	for _, s := range exporter.GetSpans() {
		assert.Equal(t, "0af7651916cd43dd8448eb211c80319c", s.SpanContext.TraceID().String())
		if s.SpanKind == trace.SpanKindServer {
			server = s
		} else {
			clients = append(clients, s)
		}
	}
	assert.Equal(t, "b7ad6b7169203331", server.Parent.SpanID().String())
	assert.Contains(t, server.Attributes, attribute.Int("gotower.attempts", 2))
	assert.Contains(t, server.Attributes, attribute.String("gotower.target", "web"))
	assert.Contains(t, server.Attributes, attribute.String("network.peer.address", addr))
	require.Len(t, clients, 2)
	for i, s := range clients {
		assert.Equal(t, server.SpanContext.SpanID(), s.Parent.SpanID())
		assert.Equal(t, i == 0, s.Status.Code == codes.Error)
	}
	assert.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-"+clients[1].SpanContext.SpanID().String()+"-01", sent.Load())
}

func TestTraceConforms(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	for name, l := range map[string]httplayer.Layer{"server": oteltower.ServerTrace(provider), "client": oteltower.ClientTrace(provider)} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
				Layer: l,
				Request: func(int) *http.Request {
					req, err := http.NewRequest(http.MethodPost, "http://web.test/", nil)
					if err != nil {
						panic(err)
					}
					return req
				},
				Response:         func(int) *http.Response { return &http.Response{StatusCode: http.StatusOK} },
				RewritesMessages: name == "client",
			})
		})
	}
}

// The gauges of a target that is gone are removed, and those of others stay.
func TestForget(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	m := oteltower.NewMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	for _, target := range []string{"web", "books"} {
		m.Layer(target).InFlight.Add(1)
		m.Balance(target).Endpoints.With("endpoint_state", "ready").Set(1)
	}
	m.Forget("books")
	m.Forget("unknown")
	targets := map[string]bool{}
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	for _, metric := range all.ScopeMetrics[0].Metrics {
		if d, ok := metric.Data.(metricdata.Gauge[float64]); ok {
			for _, p := range d.DataPoints {
				target, _ := p.Attributes.Value("target")
				targets[target.AsString()] = true
			}
		}
	}
	assert.Equal(t, map[string]bool{"web": true}, targets)
}
