package injector

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// operation is one step in a JSON Patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Patch adds the proxy to the pod in raw, which is JSON, as [Config.Inject] does. namespace is the name
// of the pod's namespace, whose annotations are in annotations. Patch returns the changes as a JSON
// Patch, or nil if the pod is skipped.
func (c Config) Patch(raw []byte, namespace string, annotations map[string]string) ([]byte, Result, error) {
	// raw is decoded twice, because Inject changes the pod in place.
	var original, injected map[string]any
	for _, dst := range []*map[string]any{&original, &injected} {
		if err := decode(raw, dst); err != nil {
			return nil, Result{}, err
		}
	}
	metadata, _ := original["metadata"].(map[string]any)
	result, err := c.Inject(injected, ownerOf(metadata, namespace), annotations)
	if err != nil || result.Skipped != "" {
		return nil, result, err
	}
	var operations []operation
	// These are all parts that Inject changes.
	for _, path := range [][2]string{
		{"metadata", "annotations"}, {"metadata", "labels"}, {"spec", "containers"}, {"spec", "initContainers"}, {"spec", "volumes"},
	} {
		old, _ := original[path[0]].(map[string]any)
		changed, _ := injected[path[0]].(map[string]any)
		// "add" also replaces an existing value.
		if value := changed[path[1]]; !reflect.DeepEqual(old[path[1]], value) {
			operations = append(operations, operation{"add", "/" + path[0] + "/" + path[1], value})
		}
	}
	patch, err := json.Marshal(operations)
	return patch, result, err
}

// Enabled reports whether the pod in raw, which is JSON, requests a proxy with
// [InjectAnnotation]. If the pod lacks the annotation, its namespace's applies. A missing
// annotation and "disabled" do not request a proxy.
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

// OpaquePortsPatch returns a JSON Patch that sets the annotation opaque-ports on an object, because
// controllers do not read the annotation of its namespace. raw is the object in JSON: a Service, or a
// Pod without a proxy. namespace contains the annotations of its namespace. If opaque-ports is among
// them, the value is the same. Otherwise it lists the object's ports that are in c.OpaquePorts. The
// result is nil if the object has the annotation already, or if there is no value.
func (c Config) OpaquePortsPatch(raw []byte, namespace map[string]string) ([]byte, error) {
	var object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Ports      []corev1.ServicePort `json:"ports"`      // in a Service
			Containers []corev1.Container   `json:"containers"` // in a Pod
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, err
	}
	const name = "opaque-ports"
	// The annotation may have one of several prefixes.
	isOpaquePorts := func(key string) bool { n, ok := configName(key); return ok && n == name }
	if slices.ContainsFunc(slices.Collect(maps.Keys(object.Metadata.Annotations)), isOpaquePorts) {
		return nil, nil
	}
	// The annotation on the namespace, if there is one, replaces this value below.
	value := strings.Join(c.opaqueOf(object.Spec.Ports, object.Spec.Containers), ",")
	found := value != ""
	for _, key := range slices.Sorted(maps.Keys(namespace)) {
		if isOpaquePorts(key) {
			value = namespace[key]
			found = true
		}
	}
	if !found {
		return nil, nil
	}
	// Without any annotations, the patch must create the object that holds them.
	op := operation{"add", "/metadata/annotations", map[string]string{ConfigPrefix + name: value}}
	if object.Metadata.Annotations != nil {
		// JSON Patch writes a slash in a name as ~1.
		op = operation{"add", op.Path + "/" + strings.ReplaceAll(ConfigPrefix+name, "/", "~1"), value}
	}
	return json.Marshal([]operation{op})
}

// opaqueOf returns the Service's or containers' ports that are in c.OpaquePorts. A Service port
// with a target port counts if the target does.
func (c Config) opaqueOf(service []corev1.ServicePort, containers []corev1.Container) (ports []string) {
	knownPorts := strings.Split(c.OpaquePorts, ",")
	for _, p := range service {
		// A port without a target is the same in the pod.
		target := intstr.FromInt32(p.Port)
		if p.TargetPort != (intstr.IntOrString{}) {
			target = p.TargetPort
		}
		if slices.Contains(knownPorts, target.String()) {
			ports = append(ports, strconv.Itoa(int(p.Port)))
		}
	}
	for _, container := range containers {
		for _, p := range container.Ports {
			if port := strconv.Itoa(int(p.ContainerPort)); slices.Contains(knownPorts, port) {
				ports = append(ports, port)
			}
		}
	}
	return ports
}
