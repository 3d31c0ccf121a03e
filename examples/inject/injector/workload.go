package injector

import (
	"errors"
	"fmt"
	"strings"
)

// Report says what happened to one workload.
type Report struct {
	Kind, Name string
	Result
}

// Workload identifies what a pod belongs to: a Deployment, for example, or the Pod itself if
// nothing owns it. An injected pod carries it in its labels, by which linkerd's viz extension
// selects pods.
type Workload struct{ Kind, Namespace, Name string }

// Labels for the workload's namespace and name.
const (
	workloadNamespace = "linkerd.io/workload-ns"
	workloadPrefix    = "linkerd.io/proxy-" // followed by the kind in lower case
)

// labels returns the labels for w's pods. A Pod that nothing owns gets only its namespace's.
func (w Workload) labels() map[string]string {
	all := make(map[string]string)
	if w.Namespace != "" {
		all[workloadNamespace] = w.Namespace
	}
	if isOwner(w.Kind) && w.Name != "" {
		all[workloadPrefix+strings.ToLower(w.Kind)] = w.Name
	}
	return all
}

// isOwner reports whether kind is a workload with a pod template.
func isOwner(kind string) bool {
	path, ok := templatePath(kind)
	return ok && len(path) > 0
}

// ownerOf returns the workload that a pod in this namespace belongs to. If a ReplicaSet is named
// after the pod template hash, that is its Deployment.
func ownerOf(metadata map[string]any, namespace string) Workload {
	var owners []struct {
		Kind       string `json:"kind"`
		Name       string `json:"name"`
		Controller bool   `json:"controller"`
	}
	_ = convert(metadata["ownerReferences"], &owners) // the API server has validated it
	// One owner is the controller. If there is only one, it is taken whatever it is.
	for _, o := range owners {
		if !o.Controller && len(owners) > 1 {
			continue
		}
		labels, _ := metadata["labels"].(map[string]any)
		hash, _ := labels["pod-template-hash"].(string)
		// Deployments add the hash of the pod template to the names of their ReplicaSets.
		if deployment, ok := strings.CutSuffix(o.Name, "-"+hash); ok && hash != "" && o.Kind == "ReplicaSet" {
			return Workload{"Deployment", namespace, deployment}
		}
		return Workload{o.Kind, namespace, o.Name}
	}
	return Workload{Namespace: namespace}
}

// templatePath returns the path of fields that leads to a workload's pod template. It is empty
// for a Pod. ok is false if kind is not a workload.
func templatePath(kind string) (path []string, ok bool) {
	switch kind {
	case "Pod":
		return nil, true
	case "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job":
		return []string{"spec", "template"}, true
	case "CronJob":
		return []string{"spec", "jobTemplate", "spec", "template"}, true
	}
	return nil, false
}

// hasWorkloads reports whether an API group contains kinds of workloads, such as apps for
// Deployments. Old Kubernetes versions defined some in the group extensions.
func hasWorkloads(group string) bool {
	return group == "" || group == "apps" || group == "batch" || group == "extensions"
}

// maxDepth is how deep Lists may be nested.
const maxDepth = 10

// each calls do for object's pod template, or, if object is a List, for every workload in it.
// Other kinds are ignored. kind stands in for a missing field kind, which items in a typed list
// such as PodList do not repeat. depth counts the Lists around object.
func each(object map[string]any, kind string, depth int, do func(w Workload, pod map[string]any) error) error {
	if s, ok := object["kind"].(string); ok {
		kind = s
	}
	// The version of the core group has no slash.
	version, _ := object["apiVersion"].(string)
	group, _, ok := strings.Cut(version, "/")
	if !ok {
		group = ""
	}
	if !hasWorkloads(group) {
		return nil
	}
	// A List contains other objects, whose kind is in its own name if they lack one.
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(kind, "List") {
		if depth == maxDepth {
			return errors.New("too many nested lists")
		}
		for i, item := range items {
			if m, ok := item.(map[string]any); ok {
				if err := each(m, strings.TrimSuffix(kind, "List"), depth+1, do); err != nil {
					return fmt.Errorf("items[%d]: %w", i, err)
				}
			}
		}
		return nil
	}
	path, ok := templatePath(kind)
	if !ok {
		return nil
	}
	// pod becomes the part of object that is the pod or its template.
	pod := object
	for _, field := range path {
		pod, ok = pod[field].(map[string]any)
		if !ok {
			return nil // the API server reports it
		}
	}
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	// A generated name is a prefix, which is better than nothing.
	if name == "" {
		name, _ = metadata["generateName"].(string)
	}
	namespace, _ := metadata["namespace"].(string)
	if err := do(Workload{kind, namespace, name}, pod); err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(kind), name, err)
	}
	return nil
}
