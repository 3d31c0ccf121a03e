package cluster

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind describes a kind of Kubernetes resource that tapctl accepts on its command line.
type kind struct {
	name  string   // in the singular, as in the labels of linkerd
	names []string // further names, as in kubectl
	label string   // label of endpoints and metrics; "" means name

	schema.GroupVersionResource
}

// kinds lists the kinds of resources, by which pods can be selected.
var kinds = []kind{ //nolint:gochecknoglobals // constant
	{name: "pod", names: []string{"pods", "po"}, GroupVersionResource: core("pods")},
	{name: "namespace", names: []string{"namespaces", "ns"}, GroupVersionResource: core("namespaces")},
	{name: "deployment", names: []string{"deployments", "deploy"}, GroupVersionResource: apps("deployments")},
	{name: "statefulset", names: []string{"statefulsets", "sts"}, GroupVersionResource: apps("statefulsets")},
	{name: "daemonset", names: []string{"daemonsets", "ds"}, GroupVersionResource: apps("daemonsets")},
	{name: "replicaset", names: []string{"replicasets", "rs"}, GroupVersionResource: apps("replicasets")},
	{name: "replicationcontroller", names: []string{"replicationcontrollers", "rc"}, GroupVersionResource: core("replicationcontrollers")},
	{name: "job", names: []string{"jobs"}, label: "k8s_job", GroupVersionResource: batch("jobs")},
	{name: "cronjob", names: []string{"cronjobs", "cj"}, GroupVersionResource: batch("cronjobs")},
	{name: "service", names: []string{"services", "svc"}, GroupVersionResource: core("services")},
	{name: "serviceaccount", names: []string{"serviceaccounts", "sa"}, GroupVersionResource: core("serviceaccounts")},
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func apps(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
}

func batch(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: resource}
}

// kindOf returns the kind with the given name, which may be short or plural. It returns nil
// for an unknown name.
func kindOf(name string) *kind {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name || slices.Contains(k.names, name) })
	if i < 0 {
		return nil
	}
	return &kinds[i]
}

// Resource is a resource of a cluster, such as a Deployment, whose pods a command watches.
type Resource struct {
	Kind      string // in the singular and in lower case: deployment
	Namespace string // "" means all namespaces
	Name      string // "" means all resources of the kind
}

// String returns the resource as kind/name.
func (r Resource) String() string {
	if r.Name == "" {
		return r.Kind
	}
	return r.Kind + "/" + r.Name
}

// Label returns the name of a label that linkerd sets on endpoints and in metrics. This label
// value is the resource's name. A job's label is k8s_job, and any other resource's label is its
// kind.
func (r Resource) Label() string {
	if k := kindOf(r.Kind); k != nil && k.label != "" {
		return k.label
	}
	return r.Kind
}

// Is reports whether arg, an argument of a command line, names a resource, such as
// deploy/web or deploy. It returns false for an address.
func Is(arg string) bool {
	name, _, _ := strings.Cut(arg, "/")
	return kindOf(strings.ToLower(name)) != nil
}

// Parse parses resources as kubectl does. Each argument is kind/name, or a kind that is
// followed by names. A kind without names means all resources of this kind in the
// namespace.
func Parse(args []string, namespace string) ([]Resource, error) {
	all := make([]Resource, 0, len(args))
	for i := 0; i < len(args); i++ {
		name, object, slash := strings.Cut(args[i], "/")
		k := kindOf(strings.ToLower(name))
		// The order matters: with a slash, the argument is complete, and without one, names follow.
		switch {
		case k == nil:
			return nil, fmt.Errorf("%q is not a resource: must be KIND/NAME, where KIND is %s", args[i], kindNames())
		case slash && (object == "" || strings.Contains(object, "/")):
			return nil, fmt.Errorf("%q is not a resource: must be KIND/NAME", args[i])
		case slash:
			all = append(all, k.resource(namespace, object))
			continue
		}
		// The names end at the next argument that begins with a kind.
		names := args[i+1:]
		if end := slices.IndexFunc(names, Is); end >= 0 {
			names = names[:end]
		}
		if len(names) == 0 {
			all = append(all, k.resource(namespace, ""))
		}
		for _, object := range names {
			all = append(all, k.resource(namespace, object))
		}
		i += len(names)
	}
	return all, nil
}

// resource returns a resource of the kind k. A namespace is its own namespace.
func (k *kind) resource(namespace, name string) Resource {
	if k.name == "namespace" {
		return Resource{Kind: k.name, Namespace: name, Name: name}
	}
	return Resource{Kind: k.name, Namespace: namespace, Name: name}
}

// kindNames returns the names of all kinds for an error message.
func kindNames() string {
	all := make([]string, 0, len(kinds))
	for _, k := range kinds {
		all = append(all, k.name)
	}
	return strings.Join(all, ", ")
}
