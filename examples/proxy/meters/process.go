package meters

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gotower/gotower/examples/internal/spans"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// addProcess adds metrics about the process, the Go runtime and the build. version replaces the
// version that the Go toolchain recorded, unless it is empty.
func (m *Meters) addProcess(version string) {
	// The process has just started when New is called.
	start := time.Now()
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "process_uptime_seconds_total",
			Help: "Total time since the process started (in seconds)",
		}, func() float64 { return time.Since(start).Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "process_threads", Help: "Number of OS threads in the process.",
		}, threads),
	)
	// The information is in the labels. The value 1 is the convention for such metrics.
	permanent(m.gauges("proxy_build_info", "Proxy build info")).eager(fixed(buildInfo(version))).get().Set(1)
}

// threads returns the process's number of threads, which are all known to the Go runtime.
func threads() float64 {
	sample := []metrics.Sample{{Name: "/sched/threads/total:threads"}}
	metrics.Read(sample)
	return float64(sample[0].Value.Uint64())
}

// CountDropped exports dropped's result as the number of lines dropped from log, in
// log_dropped_lines_total. Call it once per log.
func (m *Meters) CountDropped(log string, dropped func() uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "log_dropped_lines_total", ConstLabels: prometheus.Labels{"log": log},
		Help: "Lines of a log that were dropped, because its output was stuck or failed.",
	}, func() float64 { return float64(dropped()) }))
}

// CountSpans exports counts' results in the metrics of linkerd's proxy and in
// opentelemetry_spans_lost_total. Call it at most once.
func (m *Meters) CountSpans(counts func() spans.Counts) {
	// The numbers belong to the exporter, so they are read when a client scrapes, not counted twice.
	export := func(name, reason, help string, count func(spans.Counts) uint64) {
		opts := prometheus.CounterOpts{Name: name, Help: help}
		if reason != "" {
			opts.ConstLabels = prometheus.Labels{"reason": reason}
		}
		m.registry.MustRegister(prometheus.NewCounterFunc(opts, func() float64 { return float64(count(counts())) }))
	}
	const lost = "opentelemetry_spans_lost_total"
	const lostHelp = "Spans that were not exported, because the collector failed or too many waited."
	export("opentelemetry_span_export_requests", "", "Total count of span export request messages",
		func(c spans.Counts) uint64 { return c.Requests })
	export("opentelemetry_span_exports", "", "Total count of spans exported", func(c spans.Counts) uint64 { return c.Sent })
	export(lost, "failed", lostHelp, func(c spans.Counts) uint64 { return c.Failed })
	export(lost, "dropped", lostHelp, func(c spans.Counts) uint64 { return c.Dropped })
}

// buildInfo returns the labels for proxy_build_info from the Go toolchain's build information.
// version replaces the recorded version, unless it is empty.
func buildInfo(version string) Labels {
	labels := Labels{"version": version, "vendor": "gotower"}
	// Programs that were built without modules have no build information.
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return labels
	}
	labels["go_version"] = info.GoVersion
	if version == "" {
		labels["version"] = info.Main.Version
	}
	// The toolchain records these settings if the build had a repository.
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			labels["git_sha"] = s.Value
		case "vcs.time":
			labels["date"] = s.Value
		case "-race":
			labels["profile"] = "race"
		}
	}
	return labels
}

// certificates contains the metrics of the proxy's certificate.
type certificates struct {
	expires   *family[*gaugeValue]
	refreshed *family[*gaugeValue]
	refreshes *family[*counterValue]
}

// certificates makes the metrics for the proxy's own certificate.
func (m *Meters) certificates() certificates {
	return certificates{
		expires: permanent(m.gauges("control_identity_cert_expiration_timestamp_seconds",
			"Time when this proxy's current mTLS identity certificate will expire (in seconds since the UNIX epoch)")),
		refreshed: permanent(m.gauges("control_identity_cert_refresh_timestamp_seconds",
			"Time when this proxy's current mTLS identity certificate was last updated (in seconds since the UNIX epoch)")),
		refreshes: permanent(m.counters("control_identity_cert_refreshes_total",
			"The total number of times this proxy's mTLS identity certificate has been refreshed by the Identity provider")),
	}
}

// Identity returns the instruments for the proxy's certificate: when it expires and when it was
// received, in seconds since 1970, and the number of requests for one, with the label result="ok"
// or "error". They are exported only after this call.
func (m *Meters) Identity() identity.Instruments {
	// Both results are exported from the start, so that an alert on errors can compute a rate.
	refreshes := func(result string) counter { return counter{m.certs.refreshes.eager(fixed(Labels{"result": result}))} }
	return identity.Instruments{
		Expiration: gauge{m.certs.expires.eager(fixed(nil))},
		Refreshed:  gauge{m.certs.refreshed.eager(fixed(nil))},
		Refreshes:  refreshes("ok"),
		Failures:   refreshes("error"),
	}
}

// stackFamilies contains stack_create_total and stack_drop_total, which count the services of HTTP
// endpoints and balancers. Linkerd's other stack_* metrics are missing: they count polls, and this
// proxy does not poll services.
type stackFamilies struct{ created, dropped *family[*counterValue] }

// stackFamilies makes the metrics for the services that were made and dropped.
func (m *Meters) stackFamilies() stackFamilies {
	return stackFamilies{
		created: permanent(m.counters("stack_create_total", "Total number of services created")),
		dropped: permanent(m.counters("stack_drop_total", "Total number of services dropped")),
	}
}

// stack counts a service in stack_create_total, and in stack_drop_total when ctx ends. name is
// "endpoint" or "balance".
func (m *Meters) stack(ctx context.Context, d Direction, protocol, name string) {
	labels := Labels{"direction": string(d), "protocol": protocol, "name": name}
	m.stacks.created.eager(fixed(labels)).get().Inc()
	context.AfterFunc(ctx, m.stacks.dropped.eager(fixed(labels)).get().Inc)
}
