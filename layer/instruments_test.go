package layer_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// declared has the declared labels and the series of one metric, as go-kit's Prometheus
// adapter does. A series exists after it was written. Its labels must be the declared ones.
type declared struct {
	name   string
	labels string
	all    map[string]float64
	bound  []string
}

func (d declared) with(labels []string) declared {
	d.bound = append(slices.Clone(d.bound), labels...)
	return d
}

func (d declared) write(change func(float64) float64) {
	var names, pairs []string
	for i := 0; i < len(d.bound); i += 2 {
		names, pairs = append(names, d.bound[i]), append(pairs, d.bound[i]+"="+d.bound[i+1])
	}
	if got := strings.Join(names, ","); got != d.labels {
		panic(fmt.Sprintf("inconsistent label cardinality: %s has %q, not %q", d.name, d.labels, got))
	}
	key := strings.Join(append([]string{d.name}, pairs...), " ")
	d.all[key] = change(d.all[key])
}

type declaredCounter struct{ declared }

func (c declaredCounter) With(labels ...string) metrics.Counter {
	return declaredCounter{c.with(labels)}
}
func (c declaredCounter) Add(delta float64) { c.write(func(v float64) float64 { return v + delta }) }

type declaredGauge struct{ declared }

func (g declaredGauge) With(labels ...string) metrics.Gauge { return declaredGauge{g.with(labels)} }
func (g declaredGauge) Add(delta float64)                   { g.write(func(v float64) float64 { return v + delta }) }
func (g declaredGauge) Set(value float64)                   { g.write(func(float64) float64 { return value }) }

// declare returns instruments for all counters and gauges, with their labels or without.
func declare(all map[string]float64, labels func(string) string) layer.Instruments {
	counter := func(name, label string) metrics.Counter {
		return declaredCounter{declared{name: name, labels: labels(label), all: all}}
	}
	gauge := func(name string) metrics.Gauge { return declaredGauge{declared{name: name, all: all}} }
	return layer.Instruments{
		Requests: counter("requests", ""), Rejections: counter("rejections", ""), Responses: counter("responses", "class"),
		LayerRejections: counter("rejected", "layer"), Timeouts: counter("expired", "limit"),
		Retries: counter("retries", ""), RetriesSkipped: counter("skipped", "reason"), Hedges: counter("hedges", "outcome"),
		BreakerOpened: counter("trips", ""), ConnectAttempts: counter("connects", "outcome"),
		FaultsInjected: counter("injected", "fault"), Mirrored: counter("mirrored", "outcome"),
		InFlight: gauge("in_flight"), QueueLength: gauge("waiting"), Limit: gauge("limit"), Budget: gauge("budget"), BreakerOpen: gauge("open"),
	}
}

// Every series exists once the layer is made, and no others.
func TestInstrumentsSeriesAtCreation(t *testing.T) {
	for _, e := range catalogLayers() {
		all := map[string]float64{}
		instruments := layer.WithMetrics[kitR](declare(all, func(label string) string { return label }))
		ctx, cancel := context.WithCancel(t.Context())
		e.newLayer(ctx, instruments)(kitAnswer)
		cancel()
		assertSeries(t, all, e.series, e.name)
	}
}

func TestInstrumentsSeriesOfMetrics(t *testing.T) {
	all := map[string]float64{}
	layer.Metrics[kitQ, kitR](declare(all, func(label string) string { return label }))
	assertSeries(t, all, []string{
		"requests", "rejections", "in_flight", "responses class=success", "responses class=failure",
		"responses class=retryable", "responses class=throttled", "responses class=ignorable",
	}, "metrics")
}

func assertSeries(t *testing.T, all map[string]float64, want []string, name string) {
	t.Helper()
	assert.ElementsMatch(t, want, slices.Collect(maps.Keys(all)), name)
	for key, value := range all {
		switch key {
		case "budget", "limit", "connects outcome=success": // the catalog's reconnect is connected
			assert.NotZero(t, value, "%s: %s", name, key)
		default:
			assert.Zero(t, value, "%s: %s", name, key)
		}
	}
}

// A label that was not declared panics when the layer is created.
func TestInstrumentsUndeclaredLabel(t *testing.T) {
	inner := layer.Func[string, *response](func(context.Context, string) (*response, error) { return bodyOf("x"), nil })
	i := declare(map[string]float64{}, func(string) string { return "" })
	require.PanicsWithValue(t, `inconsistent label cardinality: rejected has "", not "layer"`, func() {
		layer.Limit[string](1, layer.WithMetrics[*response](i))(inner)
	})
	require.PanicsWithValue(t, `inconsistent label cardinality: hedges has "", not "outcome"`, func() {
		layer.Hedge(layer.HedgePolicy[string]{}, layer.WithMetrics[*response](i))(inner)
	})
	require.PanicsWithValue(t, `inconsistent label cardinality: responses has "", not "class"`, func() {
		layer.Metrics[string, *response](i)
	})
}
