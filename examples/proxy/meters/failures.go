package meters

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer/tcplayer"
)

// failureFamilies are what went wrong in the proxy itself, by direction.
type failureFamilies struct {
	http, tcp map[Direction]*family[prometheus.Counter]
}

func (m *Meters) failureFamilies() failureFamilies {
	f := failureFamilies{http: map[Direction]*family[prometheus.Counter]{}, tcp: map[Direction]*family[prometheus.Counter]{}}
	for _, d := range []Direction{Inbound, Outbound} {
		f.http[d] = m.counters(string(d)+"_http_errors_total", "Requests that the proxy answered itself, because of an error.")
		f.tcp[d] = m.counters(string(d)+"_tcp_errors_total", "Connections that ended with an error of the proxy.")
	}
	return f
}

// HTTPErrors returns what counts the errors that the proxy answers requests
// for itself, by [ErrorKind]. A nil error is none, and neither is one by which a
// policy denied a request, or that says that its client has gone. The function is
// safe for concurrent use.
func (m *Meters) HTTPErrors(d Direction) func(error) {
	count := m.errorsOf(m.failures.http[d], ErrorKind)
	return func(err error) { count(netip.AddrPort{}, err) }
}

// TCPErrors is HTTPErrors for connections, by tcplayer.ErrorKind, and also by the
// address that they were for, as target_addr: of a thousand at a time, each until
// a while after its last error, and of none that is not valid.
func (m *Meters) TCPErrors(d Direction) func(target netip.AddrPort, err error) {
	return m.errorsOf(m.failures.tcp[d], tcplayer.ErrorKind)
}

func (m *Meters) errorsOf(f *family[prometheus.Counter], kind func(error) string) func(netip.AddrPort, error) {
	type key struct {
		target netip.AddrPort
		kind   string
	}
	counts := newKeyed(m, func(l *lease, k key) prometheus.Counter {
		labels := Labels{"error": k.kind}
		if k.target.IsValid() {
			labels["target_addr"] = k.target.String()
		}
		return f.bind(l, labels)
	})
	return func(target netip.AddrPort, err error) {
		if err == nil || isDenied(err) || isGone(err) {
			return
		}
		what := kind(err)
		counts.of(key{target, what}, key{kind: what}).Inc()
	}
}
