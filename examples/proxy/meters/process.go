package meters

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// addProcess adds the metrics of the process, the Go runtime and the build. If version is
// not empty, it replaces the version that the Go toolchain recorded.
func (m *Meters) addProcess(version string) {
	began := time.Now()
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "process_uptime_seconds_total",
			Help: "Total time since the process started (in seconds)",
		}, func() float64 { return time.Since(began).Seconds() }),
	)
	permanent(m.gauges("proxy_build_info", "Proxy build info")).now(fixed(buildInfo(version))).get().Set(1)
}

// buildInfo returns the labels of proxy_build_info, from the build information of the Go
// toolchain. A version that is not empty replaces the recorded version.
func buildInfo(version string) Labels {
	labels := Labels{"version": version, "vendor": "gotower"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return labels
	}
	labels["go_version"] = info.GoVersion
	if version == "" {
		labels["version"] = info.Main.Version
	}
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

// certificates has the metrics of the certificate of the proxy.
type certificates struct {
	expires   *family[*gaugeValue]
	refreshes *family[*counterValue]
}

func (m *Meters) certificates() certificates {
	return certificates{
		expires: permanent(m.gauges("control_identity_cert_expiration_timestamp_seconds",
			"Time when this proxy's current mTLS identity certificate will expire (in seconds since the UNIX epoch)")),
		refreshes: permanent(m.counters("control_identity_cert_refreshes_total",
			"The total number of times this proxy's mTLS identity certificate has been refreshed by the Identity provider")),
	}
}

// Identity returns the metrics of the proxy's certificate: the time when it expires, in
// seconds since 1970, and the number of certificates received. Both are exported only after
// this call.
func (m *Meters) Identity() (expires metrics.Gauge, refreshes metrics.Counter) {
	return gauge{m.certs.expires.now(fixed(nil))}, counter{m.certs.refreshes.now(fixed(nil))}
}

// stackFamilies has the metrics stack_create_total and stack_drop_total. They count the
// services of HTTP endpoints and of balancers. Other stack_* metrics of linkerd's proxy
// are missing, because they count polls and this proxy does not poll services.
type stackFamilies struct{ created, dropped *family[*counterValue] }

func (m *Meters) stackFamilies() stackFamilies {
	return stackFamilies{
		created: permanent(m.counters("stack_create_total", "Total number of services created")),
		dropped: permanent(m.counters("stack_drop_total", "Total number of services dropped")),
	}
}

// stack counts a service in stack_create_total, and in stack_drop_total when ctx ends.
// name is "endpoint" or "balance".
func (m *Meters) stack(ctx context.Context, d Direction, protocol, name string) {
	labels := Labels{"direction": string(d), "protocol": protocol, "name": name}
	m.stacks.created.now(fixed(labels)).get().Inc()
	context.AfterFunc(ctx, m.stacks.dropped.now(fixed(labels)).get().Inc)
}
