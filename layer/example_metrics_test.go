package layer_test

import (
	"context"
	"fmt"
	"time"

	kit "github.com/go-kit/kit/metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
)

// Prometheus metrics by go-kit's adapter. A metric is created once in a program, with the
// labels that a layer binds (see Instruments) and those of the application, here target.
// Each stack gets it with its own target bound.
func ExampleMetrics() {
	counter := func(name string, labels ...string) *kit.Counter {
		return kit.NewCounterFrom(prometheus.CounterOpts{Name: name, Help: name}, append(labels, "target"))
	}
	requests, rejections := counter("client_requests_total"), counter("client_refusals_total")
	responses, rejected := counter("client_responses_total", "class"), counter("client_refused_total", "layer")
	latency := kit.NewHistogramFrom(prometheus.HistogramOpts{
		Name: "client_latency_ms", Help: "client_latency_ms", Buckets: []float64{1, 5, 10, 50, 100, 500, 1000, 5000},
	}, []string{"target"})
	instruments := func(target string) layer.Instruments {
		return layer.Instruments{
			Requests: requests.With("target", target), Rejections: rejections.With("target", target),
			Responses: responses.With("target", target), LayerRejections: rejected.With("target", target),
			Latency: latency.With("target", target),
		}
	}

	i := instruments("greeter")
	svc := layer.NewStack[string, string]().WithTarget("greeter").WithMetrics(i).
		Metrics(i). // first: as callers see it
		Queue(100, time.Second).
		Limit(10).
		Service(layer.Func[string, string](func(_ context.Context, name string) (string, error) { return "hello " + name, nil }))
	fmt.Println(svc.Call(context.Background(), "ann"))

	families, _ := prometheus.DefaultGatherer.Gather() // promhttp.Handler serves them
	for _, family := range families {
		if family.GetName() != "client_refused_total" && family.GetName() != "client_requests_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			fmt.Print(family.GetName())
			for _, label := range m.GetLabel() {
				fmt.Printf(" %s=%s", label.GetName(), label.GetValue())
			}
			fmt.Println(":", m.GetCounter().GetValue())
		}
	}
	// Output:
	// hello ann <nil>
	// client_refused_total layer=limit target=greeter: 0
	// client_refused_total layer=queue target=greeter: 0
	// client_requests_total target=greeter: 1
}
