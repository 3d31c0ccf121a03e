package main

import (
	"crypto/tls"
	"crypto/x509"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// state holds metrics about the gateway itself: its build, reloads and certificates.
type state struct {
	reloads    *prometheus.CounterVec // by result
	successful prometheus.Gauge
	loaded     prometheus.Gauge
	obtained   sync.Map // *x509.Certificate by obtainedKey: certificates from ACME
	current    func() *generation
}

// obtainedKey identifies a certificate that was obtained for a listener.
type obtainedKey struct{ listener, name string }

// newState registers the metrics. current returns the configuration in use.
func newState(r prometheus.Registerer, current func() *generation) *state {
	s := &state{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_config_reloads_total", Help: "Loads of a changed configuration file by result: success or failure.",
		}, []string{"result"}),
		successful: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gateway_config_last_reload_successful", Help: "1 if the last load of the configuration file succeeded, and 0 if not.",
		}),
		loaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gateway_config_last_reload_success_timestamp_seconds", Help: "Time at which the configuration in use was loaded.",
		}),
		current: current,
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gateway_build_info", Help: "1, with the version of the gateway as labels.", ConstLabels: buildLabels(),
	})
	build.Set(1)
	// Both results are exported from the start, so that an alert on failures can compute a rate.
	s.reloads.WithLabelValues("success")
	s.reloads.WithLabelValues("failure")
	// The configuration has been loaded at the start.
	s.set(nil)
	r.MustRegister(s.reloads, s.successful, s.loaded, build, (*certificateTimes)(s))
	return s
}

// buildLabels returns the version, the commit and the Go version with which the program was built.
func buildLabels() prometheus.Labels {
	labels := prometheus.Labels{"version": "", "revision": "", "goversion": ""}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return labels
	}
	labels["version"], labels["goversion"] = info.Main.Version, info.GoVersion
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			labels["revision"] = s.Value
		}
	}
	return labels
}

// reloaded records the result of a reload in the metrics. A nil err means success.
func (s *state) reloaded(err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	s.reloads.WithLabelValues(result).Inc()
	s.set(err)
}

// set records the result of a load in the gauges. A failure leaves the time of the last success.
func (s *state) set(err error) {
	if err != nil {
		s.successful.Set(0)
		return
	}
	s.successful.Set(1)
	s.loaded.Set(float64(time.Now().UnixMilli()) / 1000)
}

// observe records the certificates that cfg obtains for a listener, if it obtains any.
func (s *state) observe(listener string, cfg *tls.Config) {
	// Only certificates from ACME are obtained by a function.
	obtain := cfg.GetCertificate
	if obtain == nil {
		return
	}
	// Wrap the function, because the manager does not tell which certificates it has.
	cfg.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := obtain(hello)
		if err == nil && c.Leaf != nil { // a challenge's certificate has no Leaf
			s.obtained.Store(obtainedKey{listener, nameIn(c.Leaf)}, c.Leaf)
		}
		return c, err
	}
}

// nameIn returns the name by which the metrics show c.
func nameIn(c *x509.Certificate) string {
	if len(c.DNSNames) > 0 {
		return c.DNSNames[0]
	}
	if len(c.IPAddresses) > 0 {
		return c.IPAddresses[0].String()
	}
	return c.Subject.CommonName
}

// certificateTimes collects the times at which listeners' certificates expire.
type certificateTimes state

func notAfter() *prometheus.Desc {
	return prometheus.NewDesc("gateway_certificate_not_after_timestamp_seconds", "Time at which a certificate of a listener expires.",
		[]string{"listener", "name", "serial"}, nil)
}

// Describe implements [prometheus.Collector].
func (*certificateTimes) Describe(descs chan<- *prometheus.Desc) { descs <- notAfter() }

// Collect implements [prometheus.Collector].
func (s *certificateTimes) Collect(metrics chan<- prometheus.Metric) {
	desc := notAfter()
	sent := make(map[[3]string]bool)
	// send exports one certificate, unless it has been exported already.
	send := func(listener string, c *x509.Certificate) {
		labels := [3]string{listener, nameIn(c), c.SerialNumber.Text(16)}
		if !sent[labels] { // a file may be listed twice
			sent[labels] = true
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(c.NotAfter.Unix()), labels[:]...)
		}
	}
	// automatic tells which listeners still use ACME. Others may have obtained certificates before a reload.
	automatic := make(map[string]bool)
	current := s.current()
	for i := range current.Listeners {
		l := &current.Listeners[i]
		if l.TLS == nil {
			continue
		}
		automatic[string(l.Name)] = l.TLS.ACME != nil
		for j := range l.TLS.Certificates {
			send(string(l.Name), l.TLS.Certificates[j].TLS().Leaf)
		}
	}
	s.obtained.Range(func(key, value any) bool {
		k, _ := key.(obtainedKey)
		if c, _ := value.(*x509.Certificate); automatic[k.listener] {
			send(k.listener, c)
		}
		return true
	})
}
