package file

import (
	"math"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/profiles"
)

// short reads a document in the short form. All of its targets share one profile.
func (v value) short() []*entry {
	e := &entry{profile: profiles.Profile{RetryBudget: defaultBudget()}}
	var targets []*entry
	v.read(fields{
		"target": func(v value) {
			for _, item := range v.oneOrMore() {
				if t := item.target(); t != nil {
					targets = append(targets, t)
				}
			}
			if len(v.n.Content) == 0 && v.n.Kind == yaml.SequenceNode {
				v.failf("an empty list: want a name such as web.default.svc.cluster.local")
			}
		},
		"name":        e.name,
		"routes":      e.shortRoutes,
		"split":       e.readSplit,
		"retryBudget": e.shortBudget,
		"opaque":      boolean(&e.profile.OpaqueProtocol),
		"endpoint":    e.endpoint,
	})
	if len(v.n.Content) == 0 {
		return nil // {} has no profile
	}
	v.require("target", "the name of the service: web.default.svc.cluster.local")
	v.oneEndpoint()
	for _, t := range targets {
		t.split, t.profile = e.split, e.profile
		if t.profile.Name == "" && t.profile.Endpoint == nil && isDNSName(t.host) {
			t.profile.Name = t.host
		}
	}
	return targets
}

// target reads a name or an address, with or without a port, and returns an entry for it.
func (v value) target() *entry {
	text, ok := v.text()
	if !ok {
		return nil
	}
	host, port, ok := splitTarget(text)
	if _, err := netip.ParseAddr(host); !ok || err != nil && !isDNSName(host) {
		v.failf("want a DNS name or an IP address, with a port or without: web.default.svc.cluster.local:80")
		return nil
	}
	return &entry{at: v.note(""), host: host, port: port}
}

func isDNSName(host string) bool {
	return host != "" && (&profiles.Profile{Name: host}).Validate() == nil
}

func (e *entry) name(v value) {
	if text, ok := v.text(); ok {
		if !isDNSName(text) {
			v.failf("want a DNS name without a port")
		}
		e.profile.Name = text
	}
}

// readSplit reads the targets of a split in the order of the file.
func (e *entry) readSplit(v value) {
	v.each(func(key, item value) {
		t := profiles.Target{Authority: key.n.Value}
		count32(&t.Weight, math.MaxUint32)(item)
		if err := (profiles.Target{Authority: withPort(t.Authority, defaultPort)}).Validate(); err != nil {
			key.failf("%v: want a name, with a port or without", err)
		}
		e.split = append(e.split, t)
	})
}

// shortBudget reads a retry budget. Missing fields have linkerd's defaults.
func (e *entry) shortBudget(v value) {
	b := defaultBudget()
	wrong := len(v.wrong)
	v.read(fields{
		"ratio":        number(&b.Ratio),
		"minPerSecond": count32(&b.MinPerSecond, math.MaxInt32),
		"ttl":          duration(&b.TTL),
	})
	if err := b.Validate(); err != nil && len(v.wrong) == wrong {
		v.failf("%v", err)
	}
	e.profile.RetryBudget = b
}

func (e *entry) shortRoutes(v value) {
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty route: take it out, or write {match: {path: /}}")
		} else {
			e.profile.Routes = append(e.profile.Routes, item.shortRoute())
		}
	}
}

func (v value) shortRoute() (r profiles.Route) {
	var successes, failures, classes []profiles.ResponseClass
	v.read(fields{
		"name":           anyText(&r.Name),
		"match":          func(v value) { r.Match = v.condition(shortRequests()) },
		"labels":         labels(&r.Labels),
		"timeout":        duration(&r.Timeout),
		"tryTimeout":     duration(&r.AttemptTimeout),
		"retry":          retry(&r),
		"maxRetries":     count(&r.MaxRetries, 99),
		"hedge":          duration(&r.Hedge),
		"limit":          count(&r.Limit, math.MaxInt32),
		"rate":           rate(&r.Rate),
		"successes":      func(v value) { successes = v.statusClasses(false) },
		"failures":       func(v value) { failures = v.statusClasses(true) },
		"classes":        func(v value) { classes = v.shortClasses() },
		"requestHeader":  requestHeader(&r.RequestHeader),
		"responseHeader": responseHeader(&r.ResponseHeader),
		"redirect":       redirect(&r.Redirect),
		"faults":         faults(&r.Faults),
		"mirrors":        mirrors(&r.Mirrors),
	})
	v.require("match", "which requests: {method: GET, path: /books}; all of them are {pathPrefix: /}")
	r.Labels = labelled(r.Labels, r.Name)
	if item, ok := v.field("classes"); ok && len(successes)+len(failures) > 0 {
		item.failf("the order of these and of successes and failures is not known: write them all here")
	}
	r.Classes = slices.Concat(successes, failures, classes)
	return r
}

// retry reads true, false or {nonIdempotent: true}.
func retry(r *profiles.Route) func(value) {
	return func(v value) {
		if v.n.Kind == yaml.MappingNode {
			r.Retryable = true
			v.read(fields{"nonIdempotent": boolean(&r.RetryNonIdempotent)})
			v.require("nonIdempotent", "true to retry requests of any method, or retry: true for idempotent ones")
			return
		}
		into(&r.Retryable, "true, false or {nonIdempotent: true}", parseBool)(v)
	}
}

// labelled returns labels with the label route=name added. Metrics and tap show it.
func labelled(labels map[string]string, name string) map[string]string {
	if _, ok := labels["route"]; ok || name == "" {
		return labels
	}
	if labels == nil {
		labels = make(map[string]string, 1)
	}
	labels["route"] = name
	return labels
}

// rate reads a number per second, or a mapping of the fields of a Rate.
func rate(field *profiles.Rate) func(value) {
	return func(v value) {
		if v.n.Kind != yaml.MappingNode {
			number(&field.PerSecond)(v)
			return
		}
		wrong := len(v.wrong)
		v.read(fields{"perSecond": number(&field.PerSecond), "burst": count(&field.Burst, math.MaxInt32)})
		v.require("perSecond", "a number of requests")
		if err := field.Validate(); err != nil && len(v.wrong) == wrong {
			v.failf("%v", err)
		}
	}
}

// endpoint reads the only endpoint of a target.
func (e *entry) endpoint(v value) {
	to := &profiles.Endpoint{}
	wrong := len(v.wrong)
	v.read(fields{
		"addr": into(&to.Addr, "an IP address and a port: 10.0.0.1:80", func(s string) (netip.AddrPort, bool) {
			addr, err := netip.ParseAddrPort(s)
			return addr, err == nil && addr.Port() != 0
		}),
		"labels":     labels(&to.Labels),
		"weight":     count32(&to.Weight, math.MaxUint32),
		"protocol":   into(&to.Protocol, "h2 or opaque", parseProtocol),
		"serverName": word(&to.ServerName),
		"identity":   word(&to.Identity),
		"authority":  word(&to.Authority),
		"opaquePort": into(&to.OpaquePort, "a port from 1 to 65535", parsePort),

		"pingInterval": duration(&to.PingInterval),
		"pingTimeout":  duration(&to.PingTimeout),
	})
	v.require("addr", "where it is: 10.0.0.1:80")
	if to.Addr.IsValid() && len(v.wrong) == wrong {
		if err := to.Validate(); err != nil {
			v.failf("%v", err)
		}
	}
	e.profile.Endpoint = to
}

func parseProtocol(s string) (profiles.Protocol, bool) {
	switch s {
	case "h2":
		return profiles.H2Protocol, true
	case "opaque":
		return profiles.OpaqueProtocol, true
	}
	return profiles.UnknownProtocol, false
}

// oneEndpoint rejects fields that have no effect together with an endpoint.
func (v value) oneEndpoint() {
	if item, ok := v.field("endpoint"); !ok || item.isNull() {
		return
	}
	for _, name := range []string{"name", "split"} {
		if item, ok := v.field(name); ok && !item.isNull() {
			item.failf("everything goes to the endpoint: take one of the two out")
		}
	}
}
