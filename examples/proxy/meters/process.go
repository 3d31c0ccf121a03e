package meters

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// addProcess adds what the system and the runtime say of this process.
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
	m.gauges("proxy_build_info", "Proxy build info").bind(m.always, buildInfo(version)).Set(1)
}

// buildInfo has what the Go toolchain wrote into the program.
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
