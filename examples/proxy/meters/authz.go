package meters

import (
	"net/netip"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// authzFamilies are what policies decided.
type authzFamilies struct{ allowed, denied *family[prometheus.Counter] }

func (m *Meters) authzFamilies(protocol string) authzFamilies {
	return authzFamilies{
		allowed: m.counters("inbound_"+protocol+"_authz_allow_total", "What a policy allowed."),
		denied:  m.counters("inbound_"+protocol+"_authz_deny_total", "What a policy denied."),
	}
}

// Decision is what a policy decided of a request or a connection.
type Decision struct {
	Target  netip.AddrPort // what it was for
	Client  Client         // whose it was
	Allowed bool
}

// Authz returns what counts the decisions of a default policy, such as
// "all-authenticated", about the protocol "http" or "tcp"; nil for any other:
// inbound_http_authz_allow_total, inbound_http_authz_deny_total and their like of
// TCP. Their labels are those of linkerd's proxy of a default policy: [Target];
// srv_*, authz_* of what is allowed, and of HTTP route_*, all of the kind
// "default"; and TLS as for [Client]. Of more than a thousand targets and clients
// at a time, further ones are counted without target, and without client_id. Each
// is shown until a while after its last decision. The function is safe for
// concurrent use.
func (m *Meters) Authz(protocol, policy string) func(Decision) {
	f, ok := m.authz[protocol]
	if !ok {
		return nil
	}
	route, allowed := Labels{}, byDefault("authz", policy)
	if protocol == "http" {
		route = byDefault("route", "default")
	}
	counts := newKeyed(m, func(l *seriesLease, d Decision) prometheus.Counter {
		labels := Server(policy, d.Target).With(route).With(Target(d.Target)).With(d.Client.Labels())
		if d.Allowed {
			return f.allowed.bind(l, labels.With(allowed))
		}
		return f.denied.bind(l, labels)
	})
	return func(d Decision) {
		rest := Decision{Client: d.Client.anonymous(), Allowed: d.Allowed}
		counts.of(d, rest).Inc()
	}
}

// Server are srv_* of a default policy, such as "all-authenticated": srv_group,
// srv_kind and srv_name, and srv_port of a target that is valid.
func Server(policy string, target netip.AddrPort) Labels {
	labels := byDefault("srv", policy)
	if target.IsValid() {
		labels["srv_port"] = strconv.Itoa(int(target.Port()))
	}
	return labels
}

// Allowed are the labels of requests to target that a default policy allowed:
// those of [Server], route_* and authz_*.
func Allowed(policy string, target netip.AddrPort) Labels {
	return Server(policy, target).With(byDefault("route", "default")).With(byDefault("authz", policy))
}

// byDefault are the labels of a resource that linkerd's proxy has without a
// policy.
func byDefault(prefix, name string) Labels {
	return Prefixed(prefix, Labels{"group": "", "kind": "default", "name": name})
}
