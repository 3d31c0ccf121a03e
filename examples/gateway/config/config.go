// Package config reads the gateway's configuration, a single YAML or JSON file. [Config] and its
// fields define the format, and gateway.schema.json describes it as a JSON Schema. Names that the
// Kubernetes Gateway API or Envoy also use mean the same here. Each mistake is reported with its
// line and column.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Config is the gateway's configuration, with all fields of the file. Values may contain
// environment variables, as ${NAME} or ${NAME:-default}. Write $${ for the text ${.
type Config struct {
	// Files whose fields are added to this one's. Their listeners, services and routes go to the
	// end of these lists. A name may be a pattern such as routes/*.yaml, which adds files in
	// alphabetical order.
	Include []string `yaml:"include"`
	// Fields that many listeners, services or routes share.
	Defaults Defaults `yaml:"defaults"`
	// The addresses at which clients connect. They are required, unless kubernetes is
	// present.
	Listeners []Listener `yaml:"listeners"`
	// Addresses for operators: metrics, health checks and the tap.
	Admin Admin `yaml:"admin"`
	// The log with one line for each request.
	AccessLog AccessLog `yaml:"accessLog"`
	// Traces requests and sends the spans by the OpenTelemetry protocol. Absent means no traces.
	Tracing *Tracing `yaml:"tracing"`
	// Services behind the gateway, to which routes send requests.
	Services []Service `yaml:"services"`
	// Routes, in the order in which they are tried. They are required, unless kubernetes is
	// present. A request that matches no route gets the status 404.
	Routes []Route `yaml:"routes"`
	// The service that counts requests for the routes' globalRateLimits. Required if a route has
	// any.
	RateLimitService *RateLimitService `yaml:"rateLimitService"`
	// Routes for connections to listeners with the protocol TCP. A connection that matches none
	// is closed.
	TCPRoutes []TCPRoute `yaml:"tcpRoutes"`
	// Adds listeners and routes from a Kubernetes cluster's Gateways, HTTPRoutes, GRPCRoutes,
	// TLSRoutes and Ingresses. They follow those in this file.
	Kubernetes *KubernetesRoutes `yaml:"kubernetes"`
	// Limits retries and hedges over all routes together.
	RetryBudget RetryBudget `yaml:"retryBudget"`
	// How long open requests may take at shutdown, or when a new configuration removes their
	// listener.
	DrainTimeout Duration `yaml:"drainTimeout" default:"30s"`
	// How long the gateway keeps serving after SIGTERM while /readyz already fails. This gives
	// load balancers time to stop sending requests before the listeners close.
	DrainDelay Duration `yaml:"drainDelay" default:"0s"`

	contents []Content
}

// Defaults provides fields for listeners, services and routes that do not set them. A field is
// replaced as a whole, not merged.
type Defaults struct {
	// Fields for each listener, such as trustedProxies.
	Listeners fieldsOfItems[Listener] `yaml:"listeners"`
	// Fields for each service, such as healthCheck.
	Services fieldsOfItems[Service] `yaml:"services"`
	// Fields for each route, such as timeouts.
	Routes fieldsOfItems[Route] `yaml:"routes"`
}

// Contents returns what was read for the configuration: its own file, and every file that it
// refers to. The gateway watches these for changes.
func (c *Config) Contents() []Content { return c.contents }

// resolve returns path as the gateway should open it. Relative paths start at the configuration's
// folder.
func (s *source) resolve(path string) string {
	// A configuration from standard input has no folder.
	if s.dir == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(s.dir, path)
}

// check reports missing listeners and routes, duplicate names and addresses, and references to
// names that do not exist. n is the root.
func (c *Config) check(n node) {
	// The cluster may provide listeners and routes.
	if c.Kubernetes == nil {
		for _, name := range []string{"listeners", "routes"} {
			// A file with only TCP routes needs no HTTP routes.
			if name == "routes" && n.has("tcpRoutes") {
				continue
			}
			if !n.has(name) {
				n.at(name).failf("missing: %s is required, unless kubernetes is present", name)
			} else if name == "listeners" && len(c.Listeners) == 0 {
				n.at(name).failf("want at least one listener")
			}
		}
	}
	listeners := namesOf(n.at("listeners"), c.Listeners, func(l *Listener) Name { return l.Name })
	services := namesOf(n.at("services"), c.Services, func(s *Service) Name { return s.Name })
	// The names of routes need only be unique.
	namesOf(n.at("routes"), c.Routes, func(r *Route) Name { return r.Name })
	addresses := make(map[Address]Name)
	for i, l := range c.Listeners {
		// The system chooses another port for each listener with port 0.
		if holder, twice := addresses[l.Address]; twice && !strings.HasSuffix(string(l.Address), ":0") {
			n.at("listeners").item(i).at("address").failf("the address of listener %s: want another one", holder)
		}
		addresses[l.Address] = l.Name
	}
	for i := range c.Routes {
		// Most routes have no mistake, and nodes are expensive to look up for thousands of routes.
		if r := &c.Routes[i]; !listeners.hasAll(r.Listeners) || !services.hasAll(r.Services()) || len(r.BackendRefs) > 1 {
			c.checkReferences(n.at("routes").item(i), r, listeners, services)
		}
	}
	c.checkTCP(n, listeners, services)
	c.checkLimits(n, services)
	// Warnings assume a valid file.
	if n.lint && len(n.Mistakes) == 0 {
		c.warnUnreachable(n)
	}
}

// checkReferences reports names in r that do not exist, and services that it lists twice. n is the route's node.
func (c *Config) checkReferences(n node, r *Route, listeners, services names) {
	for i, name := range r.Listeners {
		refer(n.at("listeners").item(i), "listener", name, listeners)
	}
	for i, b := range r.BackendRefs {
		refer(n.at("backendRefs").item(i).at("name"), "service", b.Name, services)
		// Only the services before this one are compared, so that the error is at the second one.
		if slices.ContainsFunc(r.BackendRefs[:i], func(o BackendRef) bool { return o.Name == b.Name }) {
			n.at("backendRefs").item(i).at("name").failf("given twice: want each service once")
		}
	}
	for i, m := range r.RequestMirrors {
		refer(n.at("requestMirrors").item(i).at("backendRef").at("name"), "service", m.BackendRef.Name, services)
	}
	if r.ExternalAuth != nil {
		refer(n.at("externalAuth").at("backendRef").at("name"), "service", r.ExternalAuth.BackendRef.Name, services)
	}
}

// names are the names of all items in a list such as services, in the file's order and as a set.
type names struct {
	list []string
	set  map[Name]bool
}

func (n names) hasAll(list []Name) bool {
	return !slices.ContainsFunc(list, func(name Name) bool { return !n.set[name] })
}

// refer reports a mistake at n unless targets contains name. kind says what name refers to, such as
// "service".
func refer(n node, kind string, name Name, targets names) {
	switch {
	case targets.set[name]:
	case len(targets.list) == 0:
		n.failf("unknown %s: add it to %ss", kind, kind)
	default:
		// A file may have thousands of names, which would make the error unreadable.
		const most = 10
		list := strings.Join(targets.list[:min(len(targets.list), most)], ", ")
		if len(targets.list) > most {
			list += fmt.Sprintf(" and %d more", len(targets.list)-most)
		}
		n.failf("unknown %s: want one of %s", kind, list)
	}
}

// namesOf returns the names of the items in list, which is at n, and reports duplicates.
func namesOf[T any](n node, list []T, nameOf func(*T) Name) names {
	result := names{set: make(map[Name]bool, len(list)), list: make([]string, 0, len(list))}
	for i := range list {
		name := nameOf(&list[i])
		if result.set[name] {
			n.item(i).at("name").failf("given twice: want another name")
		}
		result.set[name] = true
		// The list keeps the order of the file, for suggestions in errors.
		result.list = append(result.list, string(name))
	}
	return result
}

// setVersions sets the version of each listener and service to a digest of its configuration, and the
// service that counts the requests of each route.
func (c *Config) setVersions() {
	// A listener's version does not depend on routes, because all of them share one router.
	for i := range c.Listeners {
		c.Listeners[i].version = digest(c.Listeners[i])
	}
	for i := range c.Services {
		c.Services[i].setVersions()
	}
	for i := range c.Routes {
		if r := &c.Routes[i]; len(r.GlobalRateLimits) > 0 {
			r.limiter = c.RateLimitService
		}
	}
}

// digest returns a text that depends on all of v. It is long enough that someone who may create
// routes in a cluster cannot forge one with another route's digest.
func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("config: " + err.Error()) // all types in this package can be marshaled
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Merge returns a copy of c with the listeners, services and routes in cluster appended. Services
// and routes must not share a name. If two listeners share an address or a name, the error is an
// [AddressError].
func (c *Config) Merge(cluster *Config) (*Config, error) {
	merged := *c
	if cluster == nil {
		return &merged, nil
	}
	merged.Listeners = slices.Concat(c.Listeners, cluster.Listeners)
	merged.Services = slices.Concat(c.Services, cluster.Services)
	merged.Routes = slices.Concat(c.Routes, cluster.Routes)
	merged.TCPRoutes = slices.Concat(c.TCPRoutes, cluster.TCPRoutes)
	for _, l := range c.Listeners {
		for _, o := range cluster.Listeners {
			if o.Address == l.Address || o.Name == l.Name { // routes refer to listeners by name
				return nil, &AddressError{string(o.Address), fmt.Errorf("the address or the name of listener %s in the file", l.Name)}
			}
		}
	}
	for _, s := range c.Services {
		if cluster.Service(s.Name) != nil {
			return nil, fmt.Errorf("the file and the cluster have a service %s", s.Name)
		}
	}
	for _, r := range c.Routes {
		if slices.ContainsFunc(cluster.Routes, func(o Route) bool { return o.Name == r.Name }) {
			return nil, fmt.Errorf("the file and the cluster have a route %s", r.Name)
		}
	}
	for _, r := range c.TCPRoutes {
		if slices.ContainsFunc(cluster.TCPRoutes, func(o TCPRoute) bool { return o.Name == r.Name }) {
			return nil, fmt.Errorf("the file and the cluster have a TCP route %s", r.Name)
		}
	}
	return &merged, nil
}

// Service returns the service with this name, or nil if there is none.
func (c *Config) Service(name Name) *Service {
	for i := range c.Services {
		if c.Services[i].Name == name {
			return &c.Services[i]
		}
	}
	return nil
}
