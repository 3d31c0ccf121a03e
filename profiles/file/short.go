package file

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// readShort reads a document in the short form. It returns an entry for each target of the
// document. The profiles of the entries are equal, except that a missing name is the host of the
// target.
func readShort(v value) []*entry {
	// e collects what all targets of the document have in common.
	e := &entry{profile: profiles.Profile{RetryBudget: defaultBudget()}}
	var targets []*entry
	v.Read(fields{
		// The targets are kept apart, because each becomes an entry of its own.
		"target": func(v value) {
			for _, item := range v.OneOrMore() {
				if t := readTarget(item); t != nil {
					targets = append(targets, t)
				}
			}
			if len(v.Node.Content) == 0 && v.Node.Kind == yaml.SequenceNode {
				v.Failf("an empty list: want a name such as web.default.svc.cluster.local")
			}
		},
		"name":         e.name,
		"routes":       e.shortRoutes,
		"precedence":   oneOf(&e.profile.Precedence, "firstMatch", "mostSpecific"),
		"routesOnly":   yamlfile.Boolean(&e.profile.RoutesOnly),
		"split":        e.readSplit,
		"distribution": oneOf(&e.profile.Distribution, "fixedShares", "randomAvailable", "firstAvailable"),
		"retryBudget":  e.shortBudget,
		"opaque":       yamlfile.Boolean(&e.profile.OpaqueProtocol),
		"endpoint":     e.endpoint,
	})
	if len(v.Node.Content) == 0 {
		return nil // {} has no profile
	}
	v.Require("target", "the name of the service: web.default.svc.cluster.local")
	checkOneEndpoint(v)
	for _, t := range targets {
		// All entries share the routes and the split, which are not modified later.
		t.split, t.profile = e.split, e.profile
		// The name of a target is its apex, unless requests go to an endpoint.
		if t.profile.Name == "" && t.profile.Endpoint == nil && authority.IsDNSName(t.host) {
			t.profile.Name = t.host
		}
	}
	return targets
}

// readTarget reads the target of a document: a name or an address. It returns nil after a mistake.
func readTarget(v value) *entry {
	text, ok := v.Text()
	if !ok {
		return nil
	}
	host, port, ok := splitTarget(text)
	// An address must be valid as a whole; anything else must be a DNS name.
	if _, err := netip.ParseAddr(host); !ok || err != nil && !authority.IsDNSName(host) {
		v.Failf("want a DNS name or an IP address, with a port or without: web.default.svc.cluster.local:80")
		return nil
	}
	return &entry{at: v.Note(""), host: host, port: port}
}

// name reads the name of the profile, which metrics show and to which requests go without a split.
func (e *entry) name(v value) {
	if text, ok := v.Text(); ok {
		if !authority.IsDNSName(text) {
			v.Failf("want a DNS name without a port")
		}
		e.profile.Name = text
	}
}

// readSplit reads the targets of a split in the order of the file.
func (e *entry) readSplit(v value) {
	v.Each(func(key, item value) {
		t := profiles.Target{Authority: key.Node.Value}
		// Each field is a target with its weight, such as "books: 3".
		count(&t.Weight, math.MaxUint32)(item)
		if err := t.Validate(); err != nil {
			key.Failf("%v: want a name, with a port or without", err)
		}
		e.split = append(e.split, t)
	})
}

// shortBudget reads a retry budget in the short form. A missing field has the value that linkerd's
// controller uses by default: see defaultBudget.
func (e *entry) shortBudget(v value) {
	b := defaultBudget()
	// If v.Mistakes grows from here on, one of the fields is invalid.
	wrong := len(v.Mistakes)
	v.Read(fields{
		"ratio":        number(&b.Ratio),
		"minPerSecond": count(&b.MinPerSecond, math.MaxInt32),
		"ttl":          duration(&b.TTL),
	})
	if err := b.Validate(); err != nil && len(v.Mistakes) == wrong {
		v.Failf("%v", err)
	}
	e.profile.RetryBudget = b
}

// shortRoutes reads the routes of a document.
func (e *entry) shortRoutes(v value) {
	for _, item := range v.Members("an empty route: take it out, or write {match: {path: /}}") {
		e.profile.Routes = append(e.profile.Routes, readShortRoute(item))
	}
}

// oneOf returns a function that reads one of names into field. The value of a name is its index, so the names must be
// in the order of the constants.
func oneOf[T ~uint8](field *T, names ...string) func(value) {
	return into(field, "one of "+strings.Join(names, ", "), func(s string) (T, bool) {
		i := slices.Index(names, s)
		return T(max(i, 0)), i >= 0
	})
}

// readShortRoute reads a route in the short form. Each field of the mapping is read by its own function.
func readShortRoute(v value) (r profiles.Route) {
	// Classes may be given in two ways, which exclude each other because the first matching class applies.
	var successes, failures, classes []profiles.ResponseClass
	var retry profiles.Retry
	retryable := false
	v.Read(fields{
		"name":             anyText(&r.Name),
		"match":            func(v value) { r.Match = readCondition(v, shortRequests()) },
		"labels":           yamlfile.Labels(&r.Labels),
		"timeout":          duration(&r.Timeout),
		"timeoutAfterBody": yamlfile.Boolean(&r.TimeoutAfterBody),
		"tryTimeout":       duration(&r.AttemptTimeout),
		"retry":            func(v value) { retryable = readRetry(v, &retry) },
		"maxRetries":       count(&retry.Max, 99),
		"hedge":            duration(&r.Hedge),
		"limit":            count(&r.Limit, math.MaxInt32),
		"rate":             rate(&r.Rate),
		"successes":        func(v value) { successes = readStatusClasses(v, false) },
		"failures":         func(v value) { failures = readStatusClasses(v, true) },
		"classes":          func(v value) { classes = readShortClasses(v) },
		"requestHeader":    headerChanges(&r.RequestHeader),
		"responseHeader":   headerChanges(&r.ResponseHeader),
		"rewrite":          rewrite(&r.Rewrite),
		"redirect":         redirect(&r.Redirect),
		"respond":          respond(&r.Respond),
		"faults":           faults(&r.Faults),
		"mirrors":          mirrors(&r.Mirrors),
	})
	v.Require("match", "which requests: {method: GET, path: /books}; all of them are {pathPrefix: /}")
	r.Labels = labelled(r.Labels, r.Name)
	if retryable {
		r.Retry = &retry
	}
	if item, ok := v.Field("classes"); ok && len(successes)+len(failures) > 0 {
		item.Failf("the order of these and of successes and failures is not known: write them all here")
	}
	r.Classes = slices.Concat(successes, failures, classes)
	return r
}

// readRetry reads the field retry into r, and reports whether requests are retried. The value is true, false
// or {nonIdempotent: true}.
func readRetry(v value, r *profiles.Retry) (retryable bool) {
	if v.Node.Kind == yaml.MappingNode {
		v.Read(fields{"nonIdempotent": yamlfile.Boolean(&r.NonIdempotent)})
		v.Require("nonIdempotent", "true to retry requests of any method, or retry: true for idempotent ones")
		return true
	}
	into(&retryable, "true, false or {nonIdempotent: true}", parseBool)(v)
	return retryable
}

// labelled returns labels with the additional label "route", which has the value name. Metrics and
// tap show this label. If name is "" or labels already has a label "route", labelled returns labels
// unchanged.
func labelled(labels map[string]string, name string) map[string]string {
	// A label route that the user has written wins over the name.
	if _, ok := labels["route"]; ok || name == "" {
		return labels
	}
	if labels == nil {
		labels = make(map[string]string, 1)
	}
	labels["route"] = name
	return labels
}

// rate returns a function that reads a Rate into field. The value is a number per second,
// or a mapping with the fields of a Rate.
func rate(field *profiles.Rate) func(value) {
	return func(v value) {
		if v.Node.Kind != yaml.MappingNode {
			number(&field.PerSecond)(v)
			return
		}
		// If v.Mistakes grows from here on, one of the fields is invalid.
		wrong := len(v.Mistakes)
		v.Read(fields{"perSecond": number(&field.PerSecond), "burst": count(&field.Burst, math.MaxInt32)})
		v.Require("perSecond", "a number of requests")
		if err := field.Validate(); err != nil && len(v.Mistakes) == wrong {
			v.Failf("%v", err)
		}
	}
}

// endpoint reads the endpoint of a profile, to which all its requests go.
func (e *entry) endpoint(v value) {
	endpoint := &resolve.Endpoint{}
	wrong := len(v.Mistakes)
	v.Read(fields{
		"addr": into(&endpoint.Addr, "an IP address and a port: 10.0.0.1:80", func(s string) (netip.AddrPort, bool) {
			addr, err := netip.ParseAddrPort(s)
			return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), err == nil && addr.Port() != 0
		}),
		"labels":     yamlfile.Labels(&endpoint.Labels),
		"weight":     count(&endpoint.Weight, math.MaxUint32),
		"protocol":   oneOf(&endpoint.Protocol, "unknown", "h2", "opaque"),
		"serverName": word(&endpoint.ServerName),
		"identity":   word(&endpoint.Identity),
		"authority":  word(&endpoint.Authority),
		"opaquePort": into(&endpoint.OpaquePort, "a port from 1 to 65535", parsePort),

		"pingInterval":  duration(&endpoint.PingInterval),
		"pingTimeout":   duration(&endpoint.PingTimeout),
		"pingWhileIdle": yamlfile.Boolean(&endpoint.PingWhileIdle),
	})
	v.Require("addr", "where it is: 10.0.0.1:80")
	// The address was reported already, if it is invalid.
	if endpoint.Addr.IsValid() && len(v.Mistakes) == wrong {
		if err := endpoint.Validate(); err != nil {
			v.Failf("%v", err)
		}
	}
	e.profile.Endpoint = endpoint
}

// checkOneEndpoint reports a mistake for a name or a split in a profile with an endpoint, because
// all requests go to the endpoint.
func checkOneEndpoint(v value) {
	// Without the field endpoint, the others are allowed.
	if item, ok := v.Field("endpoint"); !ok || item.IsNull() {
		return
	}
	for _, name := range []string{"name", "split"} {
		if item, ok := v.Field(name); ok && !item.IsNull() {
			item.Failf("everything goes to the endpoint: take one of the two out")
		}
	}
}
