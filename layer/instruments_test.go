package layer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

// stacked applies every layer that writes metrics. It sends no request.
func stacked(ctx context.Context, i layer.Instruments) {
	inner := layer.Func[string, *response](func(context.Context, string) (*response, error) { return bodyOf("x"), nil })
	deadline := func(string) (time.Duration, bool) { return 0, false }
	layer.NewStack[string, *response]().WithMetrics(i).
		Metrics(i).
		Drain(layer.NewDrainer()).
		Timeout(time.Second).
		ResponseHeaderTimeout(time.Second).
		IdleTimeout(time.Second).
		DeadlineFromRequest(deadline).
		Limit(1).
		AdaptiveLimit(layer.AdaptivePolicy{Initial: 7}).
		RateLimit(1, 1).
		Shed(layer.ShedPolicy{}).
		Queue(1, time.Second).
		Breaker(layer.UnifiedBreaker()).
		Retry(layer.RetryPolicy[string, *response]{Budget: layer.NewBudget(0, 0, 0)}).
		Hedge(layer.HedgePolicy[string]{Budget: layer.NewBudget(0, 0, 0)}).
		FaultInjection(layer.FaultPolicy[string]{Fraction: 1, Delay: 1, TTL: 1}).
		Mirror(ctx, inner, struct {
			layer.Editor[string, *response]
		}{}, layer.MirrorPolicy[string]{}).
		Filter(func(string) error { return nil }).
		Service(inner)
}

func TestInstrumentsSeriesAtCreation(t *testing.T) {
	all := map[string]float64{}
	stacked(t.Context(), declare(all, func(label string) string { return label }))
	for key, value := range all {
		switch key {
		case "budget", "limit":
			assert.NotZero(t, value, key)
		default:
			assert.Zero(t, value, key)
		}
	}
	for _, want := range []string{
		"requests", "rejections", "responses class=failure", "responses class=success", "in_flight", "waiting", "limit", "budget",
		"expired limit=total", "expired limit=response_header", "expired limit=idle", "expired limit=deadline",
		"rejected layer=deadline", "rejected layer=limit", "rejected layer=adaptive", "rejected layer=rate", "rejected layer=shed",
		"rejected layer=queue", "rejected layer=breaker", "rejected layer=drain", "rejected layer=filter",
		"retries", "skipped reason=budget", "skipped reason=body", "skipped reason=attempts", "trips", "open",
		"hedges outcome=sent", "hedges outcome=won", "hedges outcome=skipped",
		"injected fault=delay", "injected fault=error", "mirrored outcome=answered", "mirrored outcome=full",
	} {
		assert.Contains(t, all, want)
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
