package config

import (
	"slices"

	"github.com/gotower/gotower/layer"
)

// TCPRoute selects connections to listeners with the protocol TCP and says where to forward them.
// Routes are tried in order, and the first match wins.
type TCPRoute struct {
	// How logs refer to the route.
	Name Name `yaml:"name" is:"required"`
	// Names of the listeners that use the route. The default is all listeners with the protocol
	// TCP.
	Listeners []Name `yaml:"listeners"`
	// Server names that clients request by TLS (SNI). The gateway does not terminate TLS. The
	// default is all connections, with and without TLS.
	Hostnames []Hostname `yaml:"hostnames"`
	// Services that share the connections by weight. One with a directResponse closes its share.
	BackendRefs []BackendRef `yaml:"backendRefs" is:"required"`
}

// check implements [checked]. With weights of 0 only, no service could be selected.
func (r *TCPRoute) check(n node) {
	total := 0
	for _, b := range r.BackendRefs {
		total += b.Weight
	}
	if total == 0 {
		n.at("backendRefs").failf("want at least one service with a weight above 0")
	}
}

// ProfileRoute returns the route as tap shows it, labeled like an HTTP route.
func (r *TCPRoute) ProfileRoute() *layer.Route {
	// These are the labels that tap shows for HTTP routes.
	labels := map[string]string{"route": string(r.Name)}
	if len(r.BackendRefs) == 1 {
		labels["service"] = string(r.BackendRefs[0].Name)
	}
	return &layer.Route{Name: string(r.Name), Labels: labels}
}

// Matches reports whether the route selects a listener's connection with the given server name,
// which is empty without TLS.
func (r *TCPRoute) Matches(listener Name, serverName Hostname) bool {
	return matchesAny(r.Listeners, func(name Name) bool { return name == listener }) &&
		matchesAny(r.Hostnames, func(h Hostname) bool { return h.covers(serverName) })
}

// matchesAny reports whether list is empty or contains an item for which matches returns true.
func matchesAny[T any](list []T, matches func(T) bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, matches)
}

// NeedsServerName reports whether any of the listener's TCP routes depends on the server name.
func (c *Config) NeedsServerName(listener Name) bool {
	for i := range c.TCPRoutes {
		r := &c.TCPRoutes[i]
		if len(r.Hostnames) > 0 && matchesAny(r.Listeners, func(name Name) bool { return name == listener }) {
			return true
		}
	}
	return false
}

// OnlyTCP reports whether only TCP routes refer to the service.
func (c *Config) OnlyTCP(service Name) bool {
	return c.InTCPRoutes(service) && !c.inRoutes(service)
}

// inRoutes reports whether an HTTP route refers to the service.
func (c *Config) inRoutes(service Name) bool {
	for i := range c.Routes {
		if slices.Contains(c.Routes[i].Services(), service) {
			return true
		}
	}
	return false
}

// InTCPRoutes reports whether a TCP route refers to the service.
func (c *Config) InTCPRoutes(service Name) bool {
	for _, r := range c.TCPRoutes {
		for _, b := range r.BackendRefs {
			if b.Name == service {
				return true
			}
		}
	}
	return false
}

// checkTCP reports routes with a listener for another protocol, and services in TCP routes with
// fields that need HTTP. n is the root.
func (c *Config) checkTCP(n node, listeners, services names) {
	// tcp tells which listeners serve TCP.
	tcp := make(map[Name]bool)
	for _, l := range c.Listeners {
		tcp[l.Name] = l.Protocol == "TCP"
	}
	for i := range c.Routes {
		for j, name := range c.Routes[i].Listeners {
			if tcp[name] {
				reference := n.at("routes").item(i).at("listeners").item(j)
				reference.failf("want a listener with the protocol HTTP or HTTPS; use tcpRoutes for TCP")
			}
		}
	}
	// The result is not needed, because nothing refers to TCP routes.
	namesOf(n.at("tcpRoutes"), c.TCPRoutes, func(r *TCPRoute) Name { return r.Name })
	for i, r := range c.TCPRoutes {
		route := n.at("tcpRoutes").item(i)
		for j, name := range r.Listeners {
			refer(route.at("listeners").item(j), "listener", name, listeners)
			if listeners.set[name] && !tcp[name] {
				route.at("listeners").item(j).failf("want a listener with the protocol TCP")
			}
		}
		for j, b := range r.BackendRefs {
			refer(route.at("backendRefs").item(j).at("name"), "service", b.Name, services)
		}
	}
	// A service may be used by both kinds of routes, with different requirements.
	for i := range c.Services {
		s := &c.Services[i]
		service := n.at("services").item(i)
		if s.ProxyProtocol != nil && c.inRoutes(s.Name) {
			service.at("proxyProtocol").failf("want a service to which only tcpRoutes refer")
		}
		if !c.InTCPRoutes(s.Name) {
			continue
		}
		if h := s.HealthCheck; h != nil && !h.TCP {
			service.at("healthCheck").failf("want tcp: true, because tcpRoutes refers to the service")
		}
	}
}
