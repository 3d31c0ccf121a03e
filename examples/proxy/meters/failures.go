package meters

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
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

// mostTargets is how many targets have series of their own in a
// tcp_errors_total: whoever scans ports is not to fill the memory.
const mostTargets = 1000

// TCPErrors is HTTPErrors for connections, by tcplayer.ErrorKind, and also by the
// address that they were for, as target_addr: of the first thousand, and of none
// that is not valid.
func (m *Meters) TCPErrors(d Direction) func(target netip.AddrPort, err error) {
	return m.errorsOf(m.failures.tcp[d], tcplayer.ErrorKind)
}

func (m *Meters) errorsOf(f *family[prometheus.Counter], kind func(error) string) func(netip.AddrPort, error) {
	type key struct {
		target netip.AddrPort
		kind   string
	}
	var bound sync.Map // key → counter
	var targets atomic.Int64
	return func(target netip.AddrPort, err error) {
		if err == nil || isDenied(err) || isGone(err) {
			return
		}
		k := key{target, kind(err)}
		c, ok := bound.Load(k)
		if !ok && targets.Add(1) > mostTargets {
			k.target = netip.AddrPort{}
			c, ok = bound.Load(k)
		}
		if !ok {
			labels := Labels{"error": k.kind}
			if k.target.IsValid() {
				labels["target_addr"] = k.target.String()
			}
			c, _ = bound.LoadOrStore(k, f.bind(m.always, labels))
		}
		c.(prometheus.Counter).Inc() //nolint:errcheck,forcetypeassert // stored above
	}
}

// authzFamilies are what policies decided.
type authzFamilies struct{ allowed, denied *family[prometheus.Counter] }

func (m *Meters) authzFamilies(protocol string) authzFamilies {
	return authzFamilies{
		allowed: m.counters("inbound_"+protocol+"_authz_allow_total", "What a policy allowed."),
		denied:  m.counters("inbound_"+protocol+"_authz_deny_total", "What a policy denied."),
	}
}

// Authz returns the counters of what a policy decides of the protocol "http" or
// "tcp"; nil for any other. Labels are those of the server, route and
// authorization (srv_kind, srv_name, authz_kind, authz_name, …) and of TLS.
func (m *Meters) Authz(protocol string, labels Labels) (allowed, denied metrics.Counter) {
	f, ok := m.authz[protocol]
	if !ok {
		return nil, nil
	}
	return counter{f.allowed.bind(m.always, labels)}, counter{f.denied.bind(m.always, labels)}
}
