package meters

import (
	"net/netip"

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
	server, allowed := byDefault("srv", policy), byDefault("authz", policy)
	if protocol == "http" {
		server = server.With(byDefault("route", "default"))
	}
	counts := newKeyed(m, func(l *lease, d Decision) prometheus.Counter {
		labels := server.With(Target(d.Target)).With(d.Client.Labels())
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

// byDefault are the labels of a resource that linkerd's proxy has without a
// policy.
func byDefault(prefix, name string) Labels {
	return Prefixed(prefix, Labels{"group": "", "kind": "default", "name": name})
}
