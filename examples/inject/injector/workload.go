package injector

import (
	"errors"
	"fmt"
	"strings"
)

// Report is the result of the injection or removal for one workload.
type Report struct {
	Kind, Name string
	Result
}

// templatePath returns the path of fields from a workload of the given kind to its pod
// template. The path of a Pod is empty. ok is false if kind is not a workload.
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
// Deployments. Old versions of Kubernetes had some in the group extensions.
func hasWorkloads(group string) bool {
	return group == "" || group == "apps" || group == "batch" || group == "extensions"
}

// maxDepth is the maximum number of nested Lists.
const maxDepth = 10

// each calls do for the pod template of object, if object is a workload. If object is a List,
// each calls do for each workload in the List. It ignores objects of other kinds. The argument
// kind replaces a missing field kind, because the items of a typed list such as PodList lack this
// field. The argument depth is the number of Lists around object, which maxDepth limits.
func each(object map[string]any, kind string, depth int, do func(kind, name string, pod map[string]any) error) error {
	if s, ok := object["kind"].(string); ok {
		kind = s
	}
	version, _ := object["apiVersion"].(string)
	group, _, ok := strings.Cut(version, "/")
	if !ok {
		group = ""
	}
	if !hasWorkloads(group) {
		return nil
	}
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
	pod := object
	for _, field := range path {
		pod, ok = pod[field].(map[string]any)
		if !ok {
			return nil // the API server reports it
		}
	}
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if name == "" {
		name, _ = metadata["generateName"].(string)
	}
	if err := do(kind, name, pod); err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(kind), name, err)
	}
	return nil
}
