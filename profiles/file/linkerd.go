package file

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/profiles"
)

// resource reads a Kubernetes resource: a ServiceProfile of linkerd, or a list of them
// as kubectl prints it.
func (v value) resource() []*entry {
	var apiVersion, kind string
	for name, field := range map[string]*string{"apiVersion": &apiVersion, "kind": &kind} {
		if item, ok := v.field(name); ok && !item.isNull() {
			anyText(field)(item)
		}
	}
	switch linkerd := strings.HasPrefix(apiVersion, "linkerd.io/"); {
	case linkerd && kind == "ServiceProfile":
		if item, _ := v.field("apiVersion"); apiVersion != "linkerd.io/v1alpha2" && apiVersion != "linkerd.io/v1alpha1" {
			item.failf("want linkerd.io/v1alpha2")
		}
		return v.serviceProfile()
	case linkerd && kind == "ServiceProfileList", apiVersion == "v1" && kind == "List":
		return v.resourceList()
	}
	at := v
	if item, ok := v.field("kind"); ok {
		at = item
	}
	at.failf("kind %q of apiVersion %q: want kind ServiceProfile of linkerd.io/v1alpha2, or neither of the two for the short form",
		kind, apiVersion)
	return nil
}

func ignored(value) {}

func (v value) resourceList() []*entry {
	var entries []*entry
	v.read(fields{"apiVersion": ignored, "kind": ignored, "metadata": ignored, "items": func(v value) {
		for _, item := range v.items() {
			if item.is(yaml.MappingNode, "a mapping") && !item.tooDeep() {
				entries = append(entries, item.resource()...)
			}
		}
	}})
	return entries
}

func (v value) serviceProfile() []*entry {
	e := &entry{linkerd: true, profile: profiles.Profile{RetryBudget: defaultBudget()}}
	v.read(fields{
		"apiVersion": ignored, "kind": ignored,
		"metadata": e.metadata,
		"spec": func(v value) {
			v.read(fields{
				"routes":       e.linkerdRoutes,
				"retryBudget":  e.linkerdBudget,
				"dstOverrides": e.dstOverrides,
				"opaquePorts":  e.readOpaquePorts,
			})
		},
	})
	v.require("metadata", "{name: web.default.svc.cluster.local}")
	v.require("spec", "{routes: []}")
	if e.host == "" {
		return nil
	}
	if e.namespace == "" {
		e.namespace = ownNamespace(e.host)
	}
	return []*entry{e}
}

// metadata reads the name and the namespace. It ignores other fields of Kubernetes.
func (e *entry) metadata(v value) {
	known := fields{
		"name": func(v value) {
			var name string
			word(&name)(v)
			if name == "" {
				return
			}
			if !isDNS1123(name) {
				v.failf("want a name in small letters, digits, '-' and '.': web.default.svc.cluster.local")
				return
			}
			e.host, e.profile.Name, e.at = name, name, v.note("")
		},
		"namespace": anyText(&e.namespace),
	}
	v.each(func(key, item value) {
		if read := known[key.n.Value]; read != nil && !item.isNull() {
			read(item)
		}
	})
	v.require("name", "the name of the service: web.default.svc.cluster.local")
}

// isDNS1123 reports whether name is an object name that Kubernetes allows, other than
// an IP address.
func isDNS1123(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || strings.ToLower(name) != name || strings.Contains(name, "_") {
		return false
	}
	return !strings.HasSuffix(name, ".") && (&profiles.Profile{Name: name}).Validate() == nil
}

func (e *entry) linkerdRoutes(v value) {
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty route: take it out, or write {name: get, condition: {method: GET}}")
		} else if r, ok := item.linkerdRoute(); ok {
			e.profile.Routes = append(e.profile.Routes, r)
		}
	}
}

// linkerdRoute reads a route. ok is false if the route is left out.
func (v value) linkerdRoute() (r profiles.Route, ok bool) {
	v.read(fields{
		"name":            word(&r.Name),
		"condition":       func(v value) { r.Match = v.requestMatch() },
		"isRetryable":     boolean(&r.Retryable),
		"responseClasses": func(v value) { r.Classes = v.linkerdClasses() },
		"timeout":         func(v value) { r.Timeout = v.linkerdTimeout() },
	})
	r.RetryNonIdempotent = r.Retryable // linkerd retries all methods
	v.require("name", "the name of the route in metrics")
	v.require("condition", "which requests: {method: GET, pathRegex: /books}")
	r.Labels = map[string]string{"route": r.Name}
	if condition, ok := v.field("condition"); ok && r.Match == nil {
		condition.warnf("nothing of the condition is left: the route is left out")
	}
	return r, r.Match != nil
}

// linkerdTimeout reads a timeout. An empty text means no timeout.
func (v value) linkerdTimeout() (d time.Duration) {
	if text, ok := v.text(); ok && text != "" {
		signedDuration(&d)(v)
	}
	if d < 0 {
		warnLeftOut(v, "it is below 0")
	}
	return max(d, 0)
}

func (v value) linkerdClasses() []profiles.ResponseClass {
	var classes []profiles.ResponseClass
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty response class: take it out")
			continue
		}
		var c profiles.ResponseClass
		item.read(fields{
			"condition": func(v value) { c.Match = v.responseMatch() },
			"isFailure": boolean(&c.Failure),
		})
		item.require("condition", "which responses: {status: {min: 500, max: 599}}")
		if c.Match != nil {
			classes = append(classes, c)
		} else if condition, ok := item.field("condition"); ok {
			condition.warnf("nothing of the condition is left: the response class is left out")
		}
	}
	return classes
}

func (e *entry) linkerdBudget(v value) {
	b := &profiles.RetryBudget{}
	wrong := len(v.wrong)
	v.read(fields{
		"retryRatio":          number(&b.Ratio),
		"minRetriesPerSecond": count32(&b.MinPerSecond, math.MaxUint32),
		"ttl":                 signedDuration(&b.TTL),
	})
	for _, name := range []string{"retryRatio", "minRetriesPerSecond", "ttl"} {
		v.require(name, "all three: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}")
	}
	if len(v.wrong) > wrong {
		return
	}
	e.profile.RetryBudget = b
	if err := b.Validate(); err != nil {
		e.profile.RetryBudget = nil
		v.warnf("%v: left out, so nothing is retried", err)
	}
}

func (e *entry) dstOverrides(v value) {
	for _, item := range v.items() {
		var t profiles.Target
		item.read(fields{
			"authority": word(&t.Authority),
			"weight":    into(&t.Weight, "a quantity such as 1, 0.5 or 500m, from 0 to 429496", parseWeight),
		})
		item.require("authority", "web-v2.default.svc.cluster.local:80")
		item.require("weight", "the share, such as 500m")
		if t.Authority == "" {
			continue
		}
		if err := (profiles.Target{Authority: withPort(t.Authority, defaultPort)}).Validate(); err != nil {
			at, _ := item.field("authority")
			at.warnf("%v: left out", err)
			continue
		}
		e.split = append(e.split, t)
	}
}

// readOpaquePorts reads a list of ports, as in linkerd's schema, or a mapping with
// ports as keys, which linkerd accepts too.
func (e *entry) readOpaquePorts(v value) {
	e.opaquePorts = map[uint16]bool{}
	add := func(v value, text string) {
		port, ok := parsePort(text)
		if !ok {
			v.failf("want a port from 1 to 65535")
		}
		e.opaquePorts[port] = true
	}
	if v.n.Kind == yaml.MappingNode {
		v.each(func(key, _ value) { add(key, key.n.Value) })
		return
	}
	for _, item := range v.items() {
		if text, ok := item.text(); ok {
			add(item, text)
		}
	}
}

// parseWeight parses a Kubernetes quantity as linkerd's controller does: in
// thousandths, rounded up, times ten. "1" is 10000, and "500m" is 5000. Exponents and
// suffixes other than m are mistakes.
func parseWeight(text string) (uint32, bool) {
	digits, milli := strings.CutSuffix(text, "m")
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.Trim(digits, "0123456789.") != "" {
		return 0, false
	}
	if !milli {
		f *= 1000
	}
	units := 10 * math.Ceil(f-1e-9) // 1e-9 compensates for the rounding of decimals
	return uint32(min(units, math.MaxUint32)), units <= math.MaxUint32
}
