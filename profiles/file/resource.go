package file

import (
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/profiles"
)

// resource reads a document that says what kind it is: a ServiceProfile of
// linkerd, or a list of them as kubectl prints it.
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

// metadata takes the name and the namespace. The rest is what Kubernetes puts
// there, and says nothing of the profile.
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
	for _, name := range []string{
		"annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
		"generation", "labels", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid",
	} {
		known[name] = ignored
	}
	v.read(known)
	v.require("name", "the name of the service: web.default.svc.cluster.local")
}

// isDNS1123 is the rule of Kubernetes for the names of its objects. One whose
// last label is a number would be an address here.
func isDNS1123(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || strings.ToLower(name) != name || strings.Contains(name, "_") {
		return false
	}
	return !strings.HasSuffix(name, ".") && (&profiles.Profile{Name: name}).Validate() == nil
}
