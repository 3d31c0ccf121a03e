package file

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/profiles"
)

// readResource reads a Kubernetes resource: a ServiceProfile of linkerd, or a list of
// ServiceProfiles as kubectl prints it. It returns an entry for each ServiceProfile.
func readResource(v value) []*entry {
	var apiVersion, kind string
	// Both fields decide how the rest is read, so they are read first.
	for name, field := range map[string]*string{"apiVersion": &apiVersion, "kind": &kind} {
		if item, ok := v.Field(name); ok && !item.IsNull() {
			anyText(field)(item)
		}
	}
	// A resource of linkerd must be a ServiceProfile; a list may also be kubectl's own.
	switch linkerd := strings.HasPrefix(apiVersion, "linkerd.io/"); {
	case linkerd && kind == "ServiceProfile":
		if item, _ := v.Field("apiVersion"); apiVersion != "linkerd.io/v1alpha2" && apiVersion != "linkerd.io/v1alpha1" {
			item.Failf("want linkerd.io/v1alpha2")
		}
		return readServiceProfile(v)
	case linkerd && kind == "ServiceProfileList", apiVersion == "v1" && kind == "List":
		return readResourceList(v)
	}
	// The mistake is reported at the field kind, if there is one.
	at := v
	if item, ok := v.Field("kind"); ok {
		at = item
	}
	at.Failf("kind %q of apiVersion %q: want kind ServiceProfile of linkerd.io/v1alpha2, or neither of the two for the short form",
		kind, apiVersion)
	return nil
}

// ignored reads nothing: the field is allowed, but has no meaning here.
func ignored(value) {}

// readResourceList reads the items of a list of resources.
func readResourceList(v value) []*entry {
	// A List of kubectl contains resources, which are read as if each was a document.
	var entries []*entry
	v.Read(fields{"apiVersion": ignored, "kind": ignored, "metadata": ignored, "items": func(v value) {
		for _, item := range v.Items() {
			if item.Is(yaml.MappingNode, "a mapping") && !item.TooDeep() {
				entries = append(entries, readResource(item)...)
			}
		}
	}})
	return entries
}

// readServiceProfile reads a ServiceProfile. It returns no entry if the name is missing or invalid, which is reported.
func readServiceProfile(v value) []*entry {
	// These are the values of linkerd's controller.
	e := &entry{linkerd: true, profile: profiles.Profile{RetryBudget: defaultBudget(), Distribution: profiles.RandomAvailable}}
	v.Read(fields{
		"apiVersion": ignored, "kind": ignored,
		"metadata": e.metadata,
		"spec": func(v value) {
			v.Read(fields{
				"routes":       e.linkerdRoutes,
				"retryBudget":  e.linkerdBudget,
				"dstOverrides": e.dstOverrides,
				"opaquePorts":  e.readOpaquePorts,
			})
		},
	})
	v.Require("metadata", "{name: web.default.svc.cluster.local}")
	v.Require("spec", "{routes: []}")
	if e.host == "" {
		return nil
	}
	// The namespace defaults to that in the name of the service.
	if e.namespace == "" {
		e.namespace = ownNamespace(e.host)
	}
	return []*entry{e}
}

// metadata reads the name and the namespace of a ServiceProfile. It ignores the other
// fields of the metadata.
func (e *entry) metadata(v value) {
	known := fields{
		"name": func(v value) {
			var name string
			word(&name)(v)
			if name == "" {
				return
			}
			if !isDNS1123(name) {
				v.Failf("want a name in small letters, digits, '-' and '.': web.default.svc.cluster.local")
				return
			}
			// The position of the name stands for the profile in errors.
			e.host, e.profile.Name, e.at = name, name, v.Note("")
		},
		"namespace": anyText(&e.namespace),
	}
	// Unlike Read, Each does not report unknown fields, of which metadata has many.
	v.Each(func(key, item value) {
		if read := known[key.Node.Value]; read != nil && !item.IsNull() {
			read(item)
		}
	})
	v.Require("name", "the name of the service: web.default.svc.cluster.local")
}

// isDNS1123 reports whether Kubernetes allows name as the name of a resource. It returns false for
// an IP address.
func isDNS1123(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || strings.ToLower(name) != name || strings.Contains(name, "_") {
		return false
	}
	return !strings.HasSuffix(name, ".") && authority.IsDNSName(name)
}

// linkerdRoutes reads the routes of a ServiceProfile.
func (e *entry) linkerdRoutes(v value) {
	for _, item := range v.Members("an empty route: take it out, or write {name: get, condition: {method: GET}}") {
		if r, ok := readLinkerdRoute(item); ok {
			e.profile.Routes = append(e.profile.Routes, r)
		}
	}
}

// readLinkerdRoute reads a route of a ServiceProfile. If the condition has no valid part, ok is
// false, and the caller must leave the route out.
func readLinkerdRoute(v value) (r profiles.Route, ok bool) {
	retryable := false
	v.Read(fields{
		"name":            word(&r.Name),
		"condition":       func(v value) { r.Match = readCondition(v, linkerdRequests()) },
		"isRetryable":     yamlfile.Boolean(&retryable),
		"responseClasses": func(v value) { r.Classes = readLinkerdClasses(v) },
		"timeout":         func(v value) { r.Timeout = readLinkerdTimeout(v) },
	})
	if retryable {
		r.Retry = &profiles.Retry{NonIdempotent: true} // linkerd retries all methods
	}
	v.Require("name", "the name of the route in metrics")
	v.Require("condition", "which requests: {method: GET, pathRegex: /books}")
	r.Labels = map[string]string{"route": r.Name}
	// The condition was given, but everything in it was left out with a warning.
	if condition, ok := v.Field("condition"); ok && r.Match == nil {
		condition.Warnf("nothing of the condition is left: the route is left out")
	}
	return r, r.Match != nil
}

// readLinkerdTimeout reads a timeout. It returns 0, which means no timeout, for an empty text and
// for a negative duration.
func readLinkerdTimeout(v value) (d time.Duration) {
	// linkerd takes an empty text for no timeout.
	if text, ok := v.Text(); ok && text != "" {
		signedDuration(&d)(v)
	}
	if d < 0 {
		warnLeftOut(v, "it is below 0")
	}
	return max(d, 0)
}

// readLinkerdClasses reads the response classes of a route. It leaves out a class whose condition has no valid part.
func readLinkerdClasses(v value) []profiles.ResponseClass {
	var classes []profiles.ResponseClass
	for _, item := range v.Members("an empty response class: take it out") {
		var c profiles.ResponseClass
		item.Read(fields{
			"condition": func(v value) { c.Match = readCondition(v, linkerdResponses()) },
			"isFailure": yamlfile.Boolean(&c.Failure),
		})
		item.Require("condition", "which responses: {status: {min: 500, max: 599}}")
		// What cannot be read was recorded as a mistake. A condition of which nothing is left would hold for all.
		if c.Match != nil {
			classes = append(classes, c)
		} else if condition, ok := item.Field("condition"); ok {
			condition.Warnf("nothing of the condition is left: the response class is left out")
		}
	}
	return classes
}

// linkerdBudget reads the retry budget of a ServiceProfile, in which no field has a default.
func (e *entry) linkerdBudget(v value) {
	b := &profiles.RetryBudget{}
	// If v.Mistakes grows from here on, one of the fields is invalid.
	wrong := len(v.Mistakes)
	v.Read(fields{
		"retryRatio":          number(&b.Ratio),
		"minRetriesPerSecond": count(&b.MinPerSecond, math.MaxUint32),
		"ttl":                 signedDuration(&b.TTL),
	})
	for _, name := range []string{"retryRatio", "minRetriesPerSecond", "ttl"} {
		v.Require(name, "all three: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}")
	}
	if len(v.Mistakes) > wrong {
		return
	}
	// linkerd accepts an invalid budget, and does not retry.
	e.profile.RetryBudget = b
	if err := b.Validate(); err != nil {
		e.profile.RetryBudget = nil
		v.Warnf("%v: left out, so nothing is retried", err)
	}
}

// dstOverrides reads the split of a ServiceProfile: targets with a weight.
func (e *entry) dstOverrides(v value) {
	for _, item := range v.Items() {
		var t profiles.Target
		item.Read(fields{
			"authority": word(&t.Authority),
			"weight":    into(&t.Weight, "a quantity such as 1, 0.5 or 500m, from 0 to 429496", parseWeight),
		})
		item.Require("authority", "web-v2.default.svc.cluster.local:80")
		item.Require("weight", "the share, such as 500m")
		// A missing authority was reported above.
		if t.Authority == "" {
			continue
		}
		// linkerd leaves out such a target.
		if err := authority.CheckTarget(withPort(t.Authority, defaultPort)); err != nil {
			at, _ := item.Field("authority")
			at.Warnf("%v: left out", err)
			continue
		}
		e.split = append(e.split, t)
	}
}

// readOpaquePorts reads a list of ports, as linkerd's schema requires. It also reads a
// mapping with ports as keys, because linkerd accepts it too.
func (e *entry) readOpaquePorts(v value) {
	e.opaquePorts = map[uint16]bool{}
	// add reads one port. v is its place, for errors.
	add := func(v value, text string) {
		port, ok := parsePort(text)
		if !ok {
			v.Failf("want a port from 1 to 65535")
		}
		e.opaquePorts[port] = true
	}
	if v.Node.Kind == yaml.MappingNode {
		v.Each(func(key, _ value) { add(key, key.Node.Value) })
		return
	}
	for _, item := range v.Items() {
		if text, ok := item.Text(); ok {
			add(item, text)
		}
	}
}

// parseWeight parses a Kubernetes quantity as linkerd's controller does. It rounds the quantity up
// to thousandths. Each thousandth counts as a weight of 10: "1" is 10000, and "500m" is 5000. It
// returns false for exponents and for suffixes other than m.
func parseWeight(text string) (uint32, bool) {
	digits, milli := strings.CutSuffix(text, "m")
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.Trim(digits, "0123456789.") != "" {
		return 0, false
	}
	// Without the suffix m, the number is in whole units.
	if !milli {
		f *= 1000
	}
	units := 10 * math.Ceil(f-1e-9) // 1e-9 compensates for the rounding of decimals
	return uint32(min(units, math.MaxUint32)), units <= math.MaxUint32
}
