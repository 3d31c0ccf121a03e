package injector

import (
	"encoding/json"
	"reflect"
)

// operation is one operation of a JSON Patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Patch adds the proxy to the pod in raw, which is JSON, as [Config.Inject] does. It
// returns the changes as a JSON Patch, or nil if the pod is skipped.
func (c Config) Patch(raw []byte, namespace map[string]string) ([]byte, Result, error) {
	var before, after map[string]any
	for _, to := range []*map[string]any{&before, &after} {
		if err := decode(raw, to); err != nil {
			return nil, Result{}, err
		}
	}
	result, err := c.Inject(after, namespace)
	if err != nil || result.Skipped != "" {
		return nil, result, err
	}
	var operations []operation
	for _, path := range [][2]string{
		{"metadata", "annotations"}, {"metadata", "labels"}, {"spec", "containers"}, {"spec", "initContainers"}, {"spec", "volumes"},
	} {
		old, _ := before[path[0]].(map[string]any)
		changed, _ := after[path[0]].(map[string]any)
		if value := changed[path[1]]; !reflect.DeepEqual(old[path[1]], value) {
			operations = append(operations, operation{"add", "/" + path[0] + "/" + path[1], value})
		}
	}
	patch, err := json.Marshal(operations)
	return patch, result, err
}

// Enabled reports whether the pod in raw, which is JSON, requests a proxy by
// [InjectAnnotation]. If the pod does not have the annotation, that of its namespace
// applies. A missing annotation and "disabled" do not request a proxy.
func Enabled(raw []byte, namespace map[string]string) bool {
	var pod struct {
		Metadata struct {
			Annotations map[string]any `json:"annotations"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(raw, &pod) // the API server has validated it
	mode, ok := pod.Metadata.Annotations[InjectAnnotation]
	if !ok {
		mode = namespace[InjectAnnotation]
	}
	return mode != "" && mode != "disabled"
}
