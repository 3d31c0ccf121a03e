// Package instrument defines the instruments of layers and balancers, with their names. It
// makes them in a metrics system by a [Provider]. Packages promtower and oteltower use it.
package instrument

import (
	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// Provider makes the instruments of one target in a metrics system. An instrument varies in at most
// one label. The methods below receive its name as label, or "" for an instrument without one. The
// instrument's With selects a value. All other labels have fixed values. Calls with equal arguments
// may return the same instrument.
type Provider interface {
	// Counter returns a counter. If label is not "", the caller calls With once for each value of
	// that label.
	Counter(name, help, label string) metrics.Counter
	// Gauge returns a gauge. label means the same as for Counter.
	Gauge(name, help, label string) metrics.Gauge
	// Histogram returns a histogram of durations. Its values are in milliseconds.
	Histogram(name, help string) metrics.Histogram
}

// Layer returns the instruments for a target's layers, which p makes.
func Layer(p Provider) layer.Instruments {
	// The names and texts are part of the interface to dashboards: see grafana.json in package promtower.
	return layer.Instruments{
		Requests:      p.Counter("requests", "Admitted requests.", ""),
		Rejections:    p.Counter("rejections", "Requests that were rejected, by any layer or all endpoints.", ""),
		Responses:     p.Counter("responses", "Requests that ended, by class.", "class"),
		InFlight:      p.Gauge("in_flight_requests", "Admitted requests that have not ended.", ""),
		TimeToHeaders: p.Histogram("time_to_headers", "Time from the request to the response headers."),
		Latency:       p.Histogram("latency", "Time from the request to the end of the response."),

		LayerRejections: p.Counter("layer_rejections", "Requests rejected by a layer itself.", "layer"),
		Timeouts:        p.Counter("timeouts", "Expired time limits.", "limit"),

		QueueLength: p.Gauge("queue_length", "Waiting requests.", ""),
		QueueWait:   p.Histogram("queue_wait", "Time in the queue, of requests that waited."),
		Limit:       p.Gauge("adaptive_limit", "The current limit of concurrent requests.", ""),

		Retries:        p.Counter("retries", "Attempts after the first.", ""),
		RetriesSkipped: p.Counter("retries_skipped", "Failures that were not retried.", "reason"),
		Budget:         p.Gauge("retry_budget", "Retries that the budget allows.", ""),
		Hedges:         p.Counter("hedges", "Second requests.", "outcome"),

		BreakerOpened:   p.Counter("breaker_opened", "Times that a circuit breaker opened.", ""),
		BreakerOpen:     p.Gauge("breakers_open", "Circuit breakers that are not closed.", ""),
		ConnectAttempts: p.Counter("connect_attempts", "Attempts to connect.", "outcome"),

		FaultsInjected: p.Counter("faults_injected", "Injected faults.", "fault"),
		Mirrored:       p.Counter("mirrored", "Mirrored requests.", "outcome"),
	}
}

// Balance returns the instruments for a target's balancer, which p makes.
func Balance(p Provider) balance.Instruments {
	return balance.Instruments{
		Endpoints:        p.Gauge("endpoints", "Endpoints by state.", "endpoint_state"),
		Updates:          p.Counter("endpoint_updates", "Changes of the endpoints.", "op"),
		Rejections:       p.Counter("balancer_rejections", "Requests that no endpoint admitted.", ""),
		Ejections:        p.Counter("ejections", "Endpoints ejected by outlier detection.", "cause"),
		EjectionsSkipped: p.Counter("ejections_skipped", "Ejections prevented because too few endpoints would be left.", ""),
	}
}
