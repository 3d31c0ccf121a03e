// Package config reads the configuration of the gateway, which is one YAML or JSON file.
// The type [Config] and its fields define the format. A name that the Kubernetes Gateway
// API or Envoy uses has the same meaning here. Every mistake is reported with its line and
// column. gateway.schema.json is a JSON Schema of the format.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Config is the configuration of the gateway. It has all fields of the file.
type Config struct {
	// The addresses at which clients connect. They are required, unless kubernetes is
	// present.
	Listeners []Listener `yaml:"listeners"`
	// The addresses for operators: metrics, health checks and the tap.
	Admin Admin `yaml:"admin"`
	// The log with one line for each request.
	AccessLog AccessLog `yaml:"accessLog"`
	// The traces of requests, which are sent by the OpenTelemetry protocol. Absent means no
	// traces.
	Tracing *Tracing `yaml:"tracing"`
	// The services behind the gateway, to which routes send requests.
	Services []Service `yaml:"services"`
	// The routes, in the order in which they are tried. Routes are required, unless
	// kubernetes is present. A request that matches no route gets the status 404.
	Routes []Route `yaml:"routes"`
	// Adds the listeners and routes of Gateways, HTTPRoutes, GRPCRoutes and Ingresses of a
	// Kubernetes cluster after those of this file.
	Kubernetes *KubernetesRoutes `yaml:"kubernetes"`
	// The limit of the retries and hedges of all routes together.
	RetryBudget RetryBudget `yaml:"retryBudget"`
	// How long open requests may take at shutdown. It also limits the open requests of a
	// listener that a new configuration removes.
	DrainTimeout Duration `yaml:"drainTimeout" default:"30s"`

	contents []Content
}

// Content is the path and the content of a file that was read for a configuration.
type Content struct {
	Path string
	Data []byte
}

// Contents returns the content of all files that were read for the configuration: its own
// file and the files to which it refers.
func (c *Config) Contents() []Content { return c.contents }

// Load reads the file at path and returns its configuration. If the file has mistakes, the
// error joins an [*Error] for each of them. A Config that is returned with an error has only
// Contents.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse returns the configuration in data, which is the content of the file at path.
// Relative paths in data start at the folder of that file. If data has mistakes, the error
// joins an [*Error] for each of them.
func Parse(path string, data []byte) (*Config, error) {
	s := &source{File: yamlfile.NewFile(path, data), dir: filepath.Dir(path), contents: []Content{{path, data}}}
	s.read = func(name string) ([]byte, error) {
		data, err := os.ReadFile(name)
		s.contents = append(s.contents, Content{name, data})
		return data, err
	}
	return s.parse(path, data)
}

// ParseGenerated returns the configuration in data, which a program has generated. It does not
// read files. The argument files has the content of each file to which data refers, by its path
// in data.
func ParseGenerated(data []byte, files map[string][]byte) (*Config, error) {
	const path = "generated"
	s := &source{File: yamlfile.NewFile(path, data), read: func(name string) ([]byte, error) {
		data, ok := files[name]
		if !ok {
			return nil, os.ErrNotExist
		}
		return data, nil
	}}
	return s.parse(path, data)
}

func (s *source) parse(path string, data []byte) (*Config, error) {
	decode := func(text []byte) error { _, err := yamlfile.Documents(text, 2); return err }
	if err := decode(data); err != nil {
		line, reason := yamlfile.SyntaxError(data, err, decode)
		return nil, &Error{File: path, Line: line, Reason: "not YAML: " + reason}
	}
	roots, _ := yamlfile.Documents(data, 2)
	var c Config
	if len(roots) != 1 {
		number := "several"
		if len(roots) == 0 {
			number = "none"
		}
		return nil, &Error{File: path, Line: 1, Reason: "want one document, not " + number}
	}
	node{s, roots[0], ""}.decode(reflect.ValueOf(&c).Elem(), "")
	c.contents = s.contents
	c.resolvePaths(s)
	if err := yamlfile.Join(s.Mistakes); err != nil {
		return &Config{contents: s.contents}, err
	}
	c.setVersions()
	return &c, nil
}

// resolvePaths resolves the paths of the access log and of the ACME cache.
func (c *Config) resolvePaths(s *source) {
	if c.AccessLog.Path != "stdout" {
		c.AccessLog.Path = s.resolve(c.AccessLog.Path)
	}
	for i := range c.Listeners {
		if t := c.Listeners[i].TLS; t != nil && t.ACME != nil {
			t.ACME.CacheDirectory = s.resolve(t.ACME.CacheDirectory)
		}
	}
}

// resolve returns the path of the file with the given path in the configuration. A relative path
// starts at the folder of the configuration.
func (s *source) resolve(path string) string {
	if s.dir == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(s.dir, path)
}

// check reports missing listeners and routes, names and addresses that are used twice, and
// references to names that do not exist. n is the node of the whole file.
func (c *Config) check(n node) {
	if c.Kubernetes == nil {
		for _, name := range []string{"listeners", "routes"} {
			if !n.has(name) {
				n.at(name).failf("missing: %s is required, unless kubernetes is present", name)
			} else if name == "listeners" && len(c.Listeners) == 0 {
				n.at(name).failf("want at least one listener")
			}
		}
	}
	listeners := namesOf(n.at("listeners"), c.Listeners, func(l Listener) Name { return l.Name })
	services := namesOf(n.at("services"), c.Services, func(s Service) Name { return s.Name })
	namesOf(n.at("routes"), c.Routes, func(r Route) Name { return r.Name })
	addresses := make(map[Address]Name)
	for i, l := range c.Listeners {
		if other, twice := addresses[l.Address]; twice && !strings.HasSuffix(string(l.Address), ":0") {
			n.at("listeners").item(i).at("address").failf("the address of listener %s: want another one", other)
		}
		addresses[l.Address] = l.Name
	}
	for i, r := range c.Routes {
		c.checkReferences(n.at("routes").item(i), r, listeners, services)
	}
}

func (c *Config) checkReferences(n node, r Route, listeners, services names) {
	for i, name := range r.Listeners {
		refer(n.at("listeners").item(i), "listener", name, listeners)
	}
	for i, b := range r.BackendRefs {
		refer(n.at("backendRefs").item(i).at("name"), "service", b.Name, services)
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

// names contains the names of all items of one list, such as the services. It stores them
// in the order of the file (list) and as a set (has).
type names struct {
	list []string
	has  map[Name]bool
}

// refer reports a mistake at n if name is not in the argument known, the names that exist.
// The argument kind is the kind of item to which name refers, such as "service".
func refer(n node, kind string, name Name, known names) {
	switch {
	case known.has[name]:
	case len(known.list) == 0:
		n.failf("unknown %s: add it to %ss", kind, kind)
	default:
		const most = 10
		list := strings.Join(known.list[:min(len(known.list), most)], ", ")
		if len(known.list) > most {
			list += fmt.Sprintf(" and %d more", len(known.list)-most)
		}
		n.failf("unknown %s: want one of %s", kind, list)
	}
}

// namesOf returns the names of the items of list. It reports a name that is used twice. n
// is the node of the list.
func namesOf[T any](n node, list []T, nameOf func(T) Name) names {
	known := names{has: make(map[Name]bool, len(list))}
	for i, item := range list {
		name := nameOf(item)
		if known.has[name] {
			n.item(i).at("name").failf("given twice: want another name")
		}
		known.has[name] = true
		known.list = append(known.list, string(name))
	}
	return known
}

// setVersions sets the version of each listener, service and route, which is a digest of
// its configuration. The version of a route also depends on the services of the route.
func (c *Config) setVersions() {
	for i := range c.Listeners {
		c.Listeners[i].version = digest(c.Listeners[i])
	}
	services := make(map[Name]string, len(c.Services))
	for i := range c.Services {
		c.Services[i].version = digest(c.Services[i])
		services[c.Services[i].Name] = c.Services[i].version
	}
	for i := range c.Routes {
		r := &c.Routes[i]
		parts := []any{r}
		for _, name := range r.Services() {
			parts = append(parts, services[name])
		}
		r.version = digest(parts)
	}
}

// digest returns a text that depends on all of v. It is long enough that an owner of routes in a
// cluster cannot make a route with the digest of another.
func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("config: " + err.Error()) // the types of this package have a representation
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Merge returns a copy of c with the listeners, services and routes of other after those of
// c. It returns an error if both have a service or a route with the same name, and an
// [AddressError] if both have a listener with the same address or the same name.
func (c *Config) Merge(other *Config) (*Config, error) {
	merged := *c
	if other == nil {
		return &merged, nil
	}
	merged.Listeners = slices.Concat(c.Listeners, other.Listeners)
	merged.Services = slices.Concat(c.Services, other.Services)
	merged.Routes = slices.Concat(c.Routes, other.Routes)
	for _, l := range c.Listeners {
		for _, o := range other.Listeners {
			if o.Address == l.Address || o.Name == l.Name { // routes refer to the name
				return nil, &AddressError{string(o.Address), fmt.Errorf("the address or the name of listener %s in the file", l.Name)}
			}
		}
	}
	for _, s := range c.Services {
		if other.Service(s.Name) != nil {
			return nil, fmt.Errorf("the file and the cluster have a service %s", s.Name)
		}
	}
	for _, r := range c.Routes {
		if slices.ContainsFunc(other.Routes, func(o Route) bool { return o.Name == r.Name }) {
			return nil, fmt.Errorf("the file and the cluster have a route %s", r.Name)
		}
	}
	return &merged, nil
}

// Service returns the service with the given name, or nil if c has no such service.
func (c *Config) Service(name Name) *Service {
	for i := range c.Services {
		if c.Services[i].Name == name {
			return &c.Services[i]
		}
	}
	return nil
}
