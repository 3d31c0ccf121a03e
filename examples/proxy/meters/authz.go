package meters

import (
	"net/netip"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// authzFamilies are the metrics of policy decisions.
type authzFamilies struct{ allowed, denied *family[prometheus.Counter] }

func (m *Meters) authzFamilies(protocol string) authzFamilies {
	return authzFamilies{
		allowed: m.counters("inbound_"+protocol+"_authz_allow_total", "What a policy allowed."),
		denied:  m.counters("inbound_"+protocol+"_authz_deny_total", "What a policy denied."),
	}
}

// Decision is the decision of a policy about a request or connection.
type Decision struct {
	Target  netip.AddrPort // original destination
	Client  Client
	Allowed bool
}

// Authz returns a function that counts the decisions of a default policy, such as
// "all-authenticated", for the protocol "http" or "tcp": inbound_http_authz_allow_total,
// inbound_http_authz_deny_total and their counterparts for TCP. For other protocols it
// returns nil. The labels are those of linkerd's proxy with a default policy: [Target],
// srv_*, authz_* if allowed, route_* of HTTP, and those of TLS as for [Client]. From the
// thousand-and-first pair of target and client on, target_* and client_id are left out.
// The series are shown for the retention time after the last decision. The function is
// safe for concurrent use.
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

// Server returns the labels srv_group, srv_kind and srv_name of a default policy, such as
// "all-authenticated", and srv_port if target is valid.
func Server(policy string, target netip.AddrPort) Labels {
	labels := byDefault("srv", policy)
	if target.IsValid() {
		labels["srv_port"] = strconv.Itoa(int(target.Port()))
	}
	return labels
}

// Allowed returns the labels of requests that a default policy allowed: those of
// [Server], route_* and authz_*.
func Allowed(policy string, target netip.AddrPort) Labels {
	return Server(policy, target).With(byDefault("route", "default")).With(byDefault("authz", policy))
}

// byDefault returns the labels of a default resource, as in linkerd's proxy without a
// policy.
func byDefault(prefix, name string) Labels {
	return Prefixed(prefix, Labels{"group": "", "kind": "default", "name": name})
}
