// Package kube makes the configuration of the gateway from the objects of a Kubernetes
// cluster: Gateway, HTTPRoute and GRPCRoute of the Gateway API, and Ingress. It writes the
// status of these objects.
//
//	cluster ─▶ Objects ─▶ translation ─▶ text of a configuration ─▶ config.Config     watch.go
//	                          │
//	                          └────────▶ status of each object ─▶ cluster             status.go
//
// One gateway serves all Gateways of the classes of a controller. A listener of a Gateway
// becomes a listener of the configuration with the same port. Each match of a rule becomes a
// route of the configuration. The routes have the order of precedence of the Gateway API.
package kube

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gotower/gotower/examples/gateway/config"
)

// object is a JSON object in the configuration, such as a listener or a route.
type object = map[string]any

// Result contains the configuration that [Translate] made from the objects of a cluster,
// and the status of these objects.
type Result struct {
	Config   *config.Config
	Text     []byte            // Config in YAML
	Files    map[string][]byte // the files to which Text refers
	Statuses []Status
}

// Unusable has the addresses at which the gateway cannot listen, and the rules that
// package config rejects. The values of the maps are the reasons.
type Unusable struct {
	Addresses map[string]string // addresses at which the gateway cannot listen

	rules map[ruleName]string // rules that package config rejects
}

// ruleName identifies a rule of a route or an Ingress.
type ruleName struct {
	kind  string
	route ObjectName
	rule  int
}

// Translate returns the configuration for the objects o and the settings s, and the status
// of the objects. It leaves out the addresses in u, and the rules that package config
// rejects. If package config rejects anything except a rule, Translate returns an error.
func Translate(o *Objects, s *config.KubernetesRoutes, u Unusable) (*Result, error) {
	u.rules = make(map[ruleName]string)
	for {
		t := &translation{
			Objects: o, settings: s, unusable: u, files: make(map[string][]byte),
			owned: make(map[ObjectName]bool), ports: make(map[string]*port), backends: make(map[string]object),
		}
		r, err := t.run()
		if err == nil || !t.exclude(err) {
			return r, err
		}
	}
}

// translation is the state of one pass of [Translate]. If package config rejects rules of
// the result, Translate makes another pass without these rules.
type translation struct {
	*Objects

	settings *config.KubernetesRoutes
	unusable Unusable

	owned     map[ObjectName]bool // the Gateways of this controller
	listeners []*listener
	ports     map[string]*port // by address
	backends  map[string]object
	entries   []entry
	statuses  []Status
	files     map[string][]byte
}

// entry is a route of the configuration with its rank among the routes.
type entry struct {
	rank

	of    ruleName // rule from which the route comes; zero for a route of isolate
	ports []string // names of the listeners of the configuration
	host  string
	route object
}

func (t *translation) run() (*Result, error) {
	t.gateways()
	t.routes()
	t.ingresses()
	t.isolate()
	t.listenerStatuses()
	if t.settings.Kubeconfig != nil {
		t.files[t.settings.Kubeconfig.Path] = t.settings.Kubeconfig.Data
	}
	// sigs.k8s.io/yaml would fail for some characters, such as U+007F in the value of a header match.
	var text bytes.Buffer
	to := yaml.NewEncoder(&text)
	to.SetIndent(2)
	to.CompactSeqIndent()
	if err := errors.Join(to.Encode(t.config()), to.Close()); err != nil {
		return nil, err
	}
	c, err := config.ParseGenerated(text.Bytes(), t.files)
	if err != nil {
		return nil, err
	}
	return &Result{Config: c, Text: text.Bytes(), Files: t.files, Statuses: t.statuses}, nil
}

// config returns the whole configuration, in the form of a configuration file. It sorts
// the routes by their rank.
func (t *translation) config() object {
	listeners, services := make([]object, 0, len(t.ports)), make([]object, 0, len(t.backends))
	routes := make([]object, 0, len(t.entries))
	for _, address := range slices.Sorted(maps.Keys(t.ports)) {
		listeners = append(listeners, t.ports[address].listener(address))
	}
	for _, name := range slices.Sorted(maps.Keys(t.backends)) {
		services = append(services, t.backends[name])
	}
	slices.SortStableFunc(t.entries, func(a, b entry) int { return a.compare(b.rank) })
	names := make(map[string]int)
	for _, e := range t.entries {
		name, _ := e.route["name"].(string)
		if names[name]++; names[name] > 1 { // several host names
			name = fmt.Sprintf("%s.host%d", name, names[name])
		}
		e.route["name"], e.route["listeners"] = shorten(name), e.ports
		if e.host != "" {
			e.route["hostnames"] = []string{e.host}
		}
		routes = append(routes, e.route)
	}
	return object{"kubernetes": object{}, "listeners": listeners, "services": services, "routes": routes}
}

// shorten cuts a name that is too long for the configuration, and appends a hash of the
// whole name.
func shorten(name string) string {
	const most = 230
	if len(name) <= most {
		return name
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("%s.%x", strings.TrimRight(name[:most], ".-"), h.Sum64())
}

// exclude adds each rule in which package config found a mistake to the unusable rules, so
// that the next pass leaves it out. err has the mistakes. exclude returns false if a
// mistake is not in a rule.
func (t *translation) exclude(err error) bool {
	mistakes := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		mistakes = joined.Unwrap()
	}
	for _, err := range mistakes {
		var mistake *config.Error
		var i int
		if !errors.As(err, &mistake) {
			return false
		}
		if n, _ := fmt.Sscanf(mistake.Field, "routes[%d]", &i); n != 1 || i >= len(t.entries) || t.entries[i].of.kind == "" {
			return false
		}
		_, field, _ := strings.Cut(mistake.Field, ".")
		t.unusable.rules[t.entries[i].of] = strings.TrimSpace(field + " " + fmt.Sprintf("%q", mistake.Value) + ": " + mistake.Reason)
	}
	return true
}

// isolate keeps requests for a listener, such as "a.example.com", away from a listener with a
// wider host name at the same address, such as "*.example.com". It adds a 404 route to the
// listener with the narrower name, after its other routes.
func (t *translation) isolate() {
	for _, l := range t.listeners {
		wider := func(o *listener) bool {
			return o != l && o.serves && o.address == l.address && (o.spec.Hostname == "" || covers(o.spec.Hostname, l.spec.Hostname))
		}
		if l.serves && slices.ContainsFunc(t.listeners, wider) {
			name := portName(l.address) + ".other." + strings.TrimPrefix(l.spec.Hostname, "*.")
			t.entries = append(t.entries, entry{
				rank: rank{listener: rankHost(l.spec.Hostname), last: true}, ports: []string{portName(l.address)}, host: l.spec.Hostname,
				route: object{"name": name, "directResponse": object{"status": 404}},
			})
		}
	}
}

// rank has the properties of a route that determine its precedence according to the Gateway
// API.
type rank struct {
	listener, host hostRank
	last           bool // after all other routes of the listener
	grpc           bool
	pathType       int   // rankPrefix, rankRegex or rankExact; a higher one precedes
	path, method   int   // lengths; for HTTP, method is 1 if the match has a method
	headers, query int   // numbers of conditions
	created        int64 // Unix time
	name           string
	rule, match    int
}

// hostRank is the precedence of a host name. Exact names precede wildcards, and longer
// names precede shorter ones.
type hostRank struct {
	exact bool
	size  int
}

func rankHost(host string) hostRank {
	return hostRank{host != "" && !strings.HasPrefix(host, "*"), len(host)}
}

func (h hostRank) compare(o hostRank) int {
	return cmp.Or(first(h.exact, o.exact), cmp.Compare(o.size, h.size))
}

// first returns -1 if only a is true, 1 if only b is true, and 0 otherwise. It sorts true
// before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (r rank) compare(o rank) int {
	return cmp.Or(
		r.listener.compare(o.listener), -first(r.last, o.last), r.host.compare(o.host), first(r.grpc, o.grpc),
		cmp.Compare(o.pathType, r.pathType), cmp.Compare(o.path, r.path), cmp.Compare(o.method, r.method),
		cmp.Compare(o.headers, r.headers), cmp.Compare(o.query, r.query),
		cmp.Compare(r.created, o.created), cmp.Compare(r.name, o.name), cmp.Compare(r.rule, o.rule), cmp.Compare(r.match, o.match))
}

// covers reports whether the wildcard wild, such as "*.example.com", matches all hosts that
// name matches. It returns false if wild is not a wildcard, or equals name.
func covers(wild, name string) bool {
	return strings.HasPrefix(wild, "*.") && len(name) >= len(wild) && strings.HasSuffix(name, wild[1:]) && name != wild
}

// isHostname reports whether name is a DNS name, or one after "*.". The API server also accepts IP
// addresses and labels of more than 63 characters as host names.
func isHostname(name string) bool {
	_, err := netip.ParseAddr(name)
	labels := strings.Split(strings.TrimPrefix(name, "*."), ".")
	return err != nil && !slices.ContainsFunc(labels, func(l string) bool { return len(validation.IsDNS1123Label(l)) > 0 })
}

// intersect returns the narrower of the host names a and b, which matches the hosts that
// both match. It returns false if no host matches both. "" matches all hosts.
func intersect(a, b string) (string, bool) {
	switch {
	case a == "" || a == b || covers(a, b):
		return b, true
	case b == "" || covers(b, a):
		return a, true
	}
	return "", false
}
