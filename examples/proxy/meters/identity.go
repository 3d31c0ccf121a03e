package meters

import (
	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// certificates are what there is of this proxy's own.
type certificates struct {
	expires   *family[prometheus.Gauge]
	refreshes *family[prometheus.Counter]
}

func (m *Meters) certificates() certificates {
	return certificates{
		expires: m.gauges("control_identity_cert_expiration_timestamp_seconds",
			"Time when this proxy's current mTLS identity certificate will expire (in seconds since the UNIX epoch)"),
		refreshes: m.counters("control_identity_cert_refreshes_total",
			"The total number of times this proxy's mTLS identity certificate has been refreshed by the Identity provider"),
	}
}

// Identity returns when the certificate of this proxy ends, in seconds since
// 1970, and how often it got one. They are shown from then on.
func (m *Meters) Identity() (expires metrics.Gauge, refreshes metrics.Counter) {
	return gauge{m.certs.expires.bind(m.always, nil)}, counter{m.certs.refreshes.bind(m.always, nil)}
}
