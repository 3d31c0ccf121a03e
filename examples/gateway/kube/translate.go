// Package kube configures the gateway from a Kubernetes cluster: from the Gateway API's Gateways,
// HTTPRoutes, GRPCRoutes and TLSRoutes, and from Ingresses. It also writes the status of these
// objects.
//
//	cluster ─▶ Objects ─▶ translation ─▶ fields of a configuration ─▶ config.Config     watch.go
//	                          │
//	                          └────────▶ status of each object ─▶ cluster               status.go
//
// One gateway serves all Gateways in its controller's classes. Each of their listeners becomes a
// listener in the configuration, with the same port. Each match in a rule becomes a route, and each
// TLSRoute becomes a TCP route that depends on the server name. The configuration tries routes in
// order, so they are sorted by the Gateway API's rules of precedence.
package kube

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gotower/gotower/examples/gateway/config"
)

// object is a mapping in the configuration, such as a listener or a route.
type object = map[string]any

// Result is what [Translate] makes from a cluster's objects: a configuration, and each object's
// status.
type Result struct {
	Config   *config.Config
	Fields   map[string]any    // the same as Config, as a mapping
	Files    map[string][]byte // files that Fields refers to
	Statuses []Status
}

// Unusable lists what the configuration must leave out. The values are the reasons.
type Unusable struct {
	Addresses map[string]string // addresses at which the gateway cannot listen

	rules map[ruleName]string // rules that package config rejects
}

// ruleName identifies a rule in a route or an Ingress.
type ruleName struct {
	kind  string
	route ObjectName
	rule  int
}

// Translate returns the configuration for the objects o with the settings s, and the objects'
// status. Addresses in u are left out, and so are rules that package config rejects. If package
// config rejects anything else, Translate returns an error.
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

// translation is the state of one pass in [Translate]. If package config rejects a rule,
// Translate makes another pass without it.
type translation struct {
	*Objects

	settings *config.KubernetesRoutes
	unusable Unusable

	owned     map[ObjectName]bool // this controller's Gateways
	listeners []*listener
	ports     map[string]*port // by address
	backends  map[string]object
	entries   []entry
	statuses  []Status
	files     map[string][]byte
}

// entry is a route in the configuration, with its rank.
type entry struct {
	rank

	of    ruleName // the rule that it comes from; zero for a route from isolate
	list  string   // the configuration's list for it: routes or tcpRoutes
	ports []string // names of listeners in the configuration
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
	fields := t.config()
	c, err := config.Generated(fields, t.files)
	if err != nil {
		return nil, err
	}
	return &Result{Config: c, Fields: fields, Files: t.files, Statuses: t.statuses}, nil
}

// config returns the whole configuration as a mapping, with routes sorted by rank.
func (t *translation) config() object {
	listeners := make([]object, 0, len(t.ports))
	services := make([]object, 0, len(t.backends))
	routes := map[string][]object{"routes": {}, "tcpRoutes": {}}
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
		if names[name]++; names[name] > 1 { // one copy for each host name
			name = fmt.Sprintf("%s.host%d", name, names[name])
		}
		e.route["name"], e.route["listeners"] = shorten(name), e.ports
		if e.host != "" {
			e.route["hostnames"] = []string{e.host}
		}
		routes[e.list] = append(routes[e.list], e.route)
	}
	return object{
		"kubernetes": object{}, "listeners": listeners, "services": services,
		"routes": routes["routes"], "tcpRoutes": routes["tcpRoutes"],
	}
}

// shorten cuts a name that is too long for the configuration, and appends a hash to keep it
// unique.
func shorten(name string) string {
	const most = 230
	if len(name) <= most {
		return name
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("%s.%x", strings.TrimRight(name[:most], ".-"), h.Sum64())
}

// exclude marks the rules in which package config found the mistakes in err as unusable, so that
// the next pass leaves them out. It returns false if a mistake is not in a rule.
func (t *translation) exclude(err error) bool {
	mistakes := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		mistakes = joined.Unwrap()
	}
	rules := make(map[string]ruleName, len(t.entries))
	numbers := make(map[string]int)
	for _, e := range t.entries {
		rules[fmt.Sprintf("%s[%d]", e.list, numbers[e.list])] = e.of
		numbers[e.list]++
	}
	for _, err := range mistakes {
		mistake, ok := errors.AsType[*config.Error](err)
		if !ok {
			return false
		}
		route, field, _ := strings.Cut(mistake.Field, ".")
		rule := rules[route]
		if rule.kind == "" {
			return false
		}
		t.unusable.rules[rule] = (&config.Error{Field: field, Value: mistake.Value, Reason: mistake.Reason}).Mistake()
	}
	return true
}

// isolate keeps requests for a listener, such as "a.example.com", away from one with a wider host
// name at the same address, such as "*.example.com". To the narrower listener's routes, it appends
// one that responds with 404, or closes connections.
func (t *translation) isolate() {
	for _, l := range t.listeners {
		wider := func(o *listener) bool {
			return o != l && o.serves && o.address == l.address && (o.spec.Hostname == "" || covers(o.spec.Hostname, l.spec.Hostname))
		}
		if l.serves && slices.ContainsFunc(t.listeners, wider) {
			name := portName(l.address) + ".other." + strings.TrimPrefix(l.spec.Hostname, "*.")
			e := entry{
				rank: rank{listener: rankHost(l.spec.Hostname), last: true}, list: "routes", ports: []string{portName(l.address)},
				host: l.spec.Hostname, route: object{"name": name, "directResponse": object{"status": 404}},
			}
			if l.spec.Protocol == "TLS" {
				e.list = "tcpRoutes"
				e.route = object{"name": name, "backendRefs": []object{{"name": t.invalid()}}}
			}
			t.entries = append(t.entries, e)
		}
	}
}

// rank holds what decides a route's precedence in the Gateway API.
type rank struct {
	listener, host hostRank
	last           bool // comes after all of the listener's other routes
	grpc           bool
	pathType       int   // rankPrefix, rankRegex or rankExact; higher ones come first
	path, method   int   // lengths; for HTTP, method is 1 if the match sets a method
	headers, query int   // numbers of conditions
	created        int64 // Unix time
	name           string
	rule, match    int
}

// hostRank is a host name's precedence. Exact names come before wildcards, and longer names
// before shorter ones.
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

// first compares booleans so that true comes before false.
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

// covers reports whether the wildcard wild, such as "*.example.com", matches every host that name
// matches. It is false if wild is not a wildcard, or equals name.
func covers(wild, name string) bool {
	return strings.HasPrefix(wild, "*.") && len(name) >= len(wild) && strings.HasSuffix(name, wild[1:]) && name != wild
}

// isHostname reports whether name is a DNS name, optionally after "*.". The API server also lets
// IP addresses and labels of more than 63 characters pass.
func isHostname(name string) bool {
	_, err := netip.ParseAddr(name)
	labels := strings.Split(strings.TrimPrefix(name, "*."), ".")
	return err != nil && !slices.ContainsFunc(labels, func(l string) bool { return len(validation.IsDNS1123Label(l)) > 0 })
}

// intersect returns the narrower of two host names, which matches exactly the hosts that both
// match. It returns false if there are none. "" matches all hosts.
func intersect(a, b string) (string, bool) {
	switch {
	case a == "" || a == b || covers(a, b):
		return b, true
	case b == "" || covers(b, a):
		return a, true
	}
	return "", false
}
