// Package config reads the configuration of the gateway: a YAML or JSON file whose fields are those
// of [Config]. Names are those of the Kubernetes Gateway API and of Envoy, where they have one. Every
// mistake is reported with its line and column. gateway.schema.json is a JSON Schema of the format.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Config is the configuration of the gateway.
type Config struct {
	// The addresses at which clients connect.
	Listeners []Listener `yaml:"listeners" is:"required"`
	// The listener of operators.
	Admin Admin `yaml:"admin"`
	// The log of requests.
	AccessLog AccessLog `yaml:"accessLog"`
	// The servers behind the gateway.
	Services []Service `yaml:"services"`
	// Routes, in the order in which they are tried. A request without a route gets the status 404.
	Routes []Route `yaml:"routes" is:"required"`
	// Limits the retries and hedges of all routes together.
	RetryBudget RetryBudget `yaml:"retryBudget"`
	// The time for open requests at shutdown, and for connections of a removed listener.
	DrainTimeout Duration `yaml:"drainTimeout" default:"30s"`

	contents []Content
}

// Content is a file that was read for a configuration.
type Content struct {
	Path string
	Data []byte
}

// Contents returns the file of the configuration and the files to which it refers, as they were
// read.
func (c *Config) Contents() []Content { return c.contents }

// Load reads the configuration at path. The error has an [*Error] for each mistake, joined.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse parses data, the content of the file at path.
func Parse(path string, data []byte) (*Config, error) {
	s := &source{name: path, contents: []Content{{path, data}}}
	s.read = func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		data, err := os.ReadFile(name)
		s.contents = append(s.contents, Content{name, data})
		return data, err
	}
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
	c.resolvePaths(filepath.Dir(path))
	if len(s.mistakes) > 0 {
		return nil, join(s.mistakes)
	}
	c.setVersions()
	return &c, nil
}

// resolvePaths resolves the paths that the gateway writes to, as those of files are resolved.
func (c *Config) resolvePaths(dir string) {
	absolute := func(path *string) {
		if !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	if c.AccessLog.Path != "stdout" {
		absolute(&c.AccessLog.Path)
	}
	for i := range c.Listeners {
		if t := c.Listeners[i].TLS; t != nil && t.ACME != nil {
			absolute(&t.ACME.CacheDirectory)
		}
	}
}

// join returns the mistakes in the order of their positions.
func join(mistakes []*Error) error {
	slices.SortStableFunc(mistakes, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	errs := make([]error, 0, len(mistakes))
	for _, e := range mistakes {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// check reports names that are used twice and references to names that do not exist.
func (c *Config) check(n node) {
	if len(c.Listeners) == 0 {
		n.at("listeners").failf("want at least one listener")
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

// names are the names of a list, in order.
type names struct {
	list []string
	has  map[Name]bool
}

// refer reports a name that does not exist.
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

// namesOf returns the names of a list and reports those that are used twice.
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

// setVersions sets the versions of listeners, services and routes. The version of a route changes with
// the services to which it refers.
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
		for _, name := range r.services() {
			parts = append(parts, services[name])
		}
		r.version = digest(parts)
	}
}

func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("config: " + err.Error()) // the types of this package have a representation
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// Service returns the service with this name, or nil.
func (c *Config) Service(name Name) *Service {
	for i := range c.Services {
		if c.Services[i].Name == name {
			return &c.Services[i]
		}
	}
	return nil
}
