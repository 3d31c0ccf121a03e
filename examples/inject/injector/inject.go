package injector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Annotations that [Config.Inject] sets on a pod, its first label, and the value for createdBy.
// [Uninject] removes these annotations, and all labels that Inject adds.
const (
	createdBy       = "linkerd.io/created-by"
	proxyVersion    = "linkerd.io/proxy-version"
	trustRoot       = "linkerd.io/trust-root-sha256"
	controlPlane    = "linkerd.io/control-plane-ns"
	createdByInject = "gotower/inject"
)

// Result is the result of one pod's injection.
type Result struct {
	Skipped  string   // why the pod is unchanged; "" means that it was injected
	Warnings []string // annotations that were ignored
}

// Inject adds the proxy to pod, which is a Pod or a pod template with the fields metadata and
// spec. w is the workload that the labels will name. namespace holds the annotations on the pod's
// namespace. The pod inherits the annotations that configure the proxy, unless it carries the
// same annotation itself.
//
// Inject skips a pod that disables injection or cannot have a proxy, and says why in
// Result.Skipped. After an error the pod is unchanged.
func (c Config) Inject(pod map[string]any, w Workload, namespace map[string]string) (Result, error) {
	p, err := newPod(pod)
	if err != nil {
		return Result{}, err
	}
	// Some pods cannot have a proxy, whatever their annotations say.
	if skipped := p.skip(); skipped != "" {
		return Result{Skipped: skipped}, nil
	}
	inherited := map[string]string{}
	// The pod's own annotations have precedence.
	for key, value := range namespace {
		if _, ok := configName(key); (ok || key == InjectAnnotation) && p.annotations[key] == nil {
			inherited[key] = value
		}
	}
	all, err := texts(p.annotations)
	if err != nil {
		return Result{}, err
	}
	maps.Copy(all, inherited)
	// The namespace may enable injection, and the pod disable it.
	if all[InjectAnnotation] == "disabled" {
		return Result{Skipped: InjectAnnotation + " is disabled"}, nil
	}
	o := c.options()
	warnings, err := o.set(all)
	if err != nil {
		return Result{}, err
	}
	rules, err := o.redirection()
	if err != nil {
		return Result{}, err
	}
	var containers []container
	if err := convert(p.containers, &containers); err != nil {
		return Result{}, err
	}
	env := o.environ(c, containers)
	// A mistake in an annotation should be reported now, and not by a proxy that does not start.
	if err := checkEnviron(env, c.TrustAnchors); err != nil {
		return Result{}, err
	}
	// The typed objects are converted to the untyped form of the pod, which keeps fields that this program does not
	// know.
	var first, proxy map[string]any
	var added []any
	for dst, src := range map[any]any{
		&first: o.initContainer(c, rules), &proxy: o.proxyContainer(c, env), &added: volumes(c),
	} {
		if err := convert(src, dst); err != nil {
			return Result{}, err
		}
	}
	// A native sidecar starts before the other init containers, and the redirection before it. Otherwise, the
	// redirection comes last, because init containers without a proxy need the network.
	if o.native {
		p.inits = slices.Concat([]any{first, proxy}, p.inits)
	} else {
		p.inits = append(slices.Clip(p.inits), first)
		p.containers = slices.Concat([]any{proxy}, p.containers)
	}
	// Clip makes append copy the list, because the pod's own list must not change after an error.
	p.volumes = append(slices.Clip(p.volumes), added...)
	p.annotate(c, o, inherited)
	for label, value := range w.labels() {
		p.labels[label] = value
	}
	p.store()
	return Result{Warnings: warnings}, nil
}

// Uninject removes everything from pod that [Config.Inject] added, and reports whether there was
// a proxy. Annotations copied from a namespace remain.
func Uninject(pod map[string]any) (bool, error) {
	p, err := newPod(pod)
	if err != nil || !p.injected() {
		return false, err
	}
	// without returns the elements of all except those with a name that the injector adds.
	without := func(all []any, added func(name string) bool) []any {
		return slices.DeleteFunc(slices.Clone(all), func(v any) bool { return added(name(v)) })
	}
	p.containers = without(p.containers, func(name string) bool { return name == ProxyName })
	p.inits = without(p.inits, func(name string) bool { return name == ProxyName || name == initName })
	p.volumes = without(p.volumes, isVolume)
	for _, key := range []string{createdBy, proxyVersion, trustRoot} {
		delete(p.annotations, key)
	}
	for label := range p.labels {
		if label == controlPlane || label == workloadNamespace || strings.HasPrefix(label, workloadPrefix) {
			delete(p.labels, label)
		}
	}
	p.store()
	return true, nil
}

// isVolume reports whether [Config.Inject] adds a volume with this name.
func isVolume(name string) bool {
	return slices.Contains([]string{lockName, identityName, tokenName}, name)
}

// pod holds what the injector changes in a Pod or a pod template. store writes it back to object,
// the decoded Pod or template.
type pod struct {
	metadata, spec             map[string]any
	annotations, labels        map[string]any
	containers, inits, volumes []any

	object map[string]any
}

// newPod returns the parts of object that the injector changes. Parts that are missing are empty.
func newPod(object map[string]any) (*pod, error) {
	p := &pod{object: object}
	// The first mistake is kept, so that the functions below need not return errors.
	var err error
	// field returns the object in a field, or a new one.
	field := func(parent map[string]any, name string) map[string]any {
		m, ok := parent[name].(map[string]any)
		if !ok {
			if parent[name] != nil && err == nil {
				err = fmt.Errorf("%s: must be an object", name)
			}
			m = map[string]any{}
		}
		return m
	}
	// elements returns the list in a field of the spec.
	elements := func(name string) []any {
		l, ok := p.spec[name].([]any)
		if !ok && p.spec[name] != nil && err == nil {
			err = fmt.Errorf("%s: must be a list", name)
		}
		return l
	}
	p.metadata = field(object, "metadata")
	p.spec = field(object, "spec")
	p.annotations = field(p.metadata, "annotations")
	p.labels = field(p.metadata, "labels")
	p.containers = elements("containers")
	p.inits = elements("initContainers")
	p.volumes = elements("volumes")
	return p, err
}

// injected reports whether there is already a proxy in the pod.
func (p *pod) injected() bool {
	return slices.ContainsFunc(slices.Concat(p.containers, p.inits), func(c any) bool { return name(c) == ProxyName })
}

// skip returns why the pod cannot get a proxy, or "" if it can.
func (p *pod) skip() string {
	// A failed conversion leaves the zero value, which excludes nothing.
	selector, _ := p.spec["nodeSelector"].(map[string]any)
	system, _ := p.spec["os"].(map[string]any)
	host, _ := p.spec["hostNetwork"].(bool)
	// Each case describes a pod that would not work with a proxy, or already has one.
	switch {
	case p.injected():
		return "it has a proxy"
	case len(p.containers) == 0:
		return "it has no containers"
	case host:
		return "it uses the network of the node"
	case selector["kubernetes.io/os"] == "windows", system["name"] == "windows":
		return "it runs on Windows"
	}
	// A pod with one of these has been injected by another program.
	for _, v := range p.volumes {
		if isVolume(name(v)) {
			return "it has a volume " + name(v)
		}
	}
	for _, c := range slices.Concat(p.containers, p.inits) {
		if name(c) == initName {
			return "it has a container " + initName
		}
	}
	return ""
}

// Version returns the tag of an image, which is the version of the proxy in it.
func Version(image string) string {
	// A colon before the last slash belongs to the registry's port.
	_, tag, ok := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	if !ok {
		return "latest"
	}
	return tag
}

// annotate sets the injector's annotations and label, and the annotations that the pod inherits
// from its namespace.
func (p *pod) annotate(c Config, o options, inherited map[string]string) {
	for key, value := range inherited {
		// The pod does not inherit whether it is injected, because it is already.
		if key != InjectAnnotation {
			p.annotations[key] = value
		}
	}
	p.annotations[createdBy] = createdByInject
	p.annotations[proxyVersion] = Version(o.proxyImage)
	// A pod of the controller reads the anchors from a ConfigMap, so they may change.
	if c.TrustAnchors != "" && !c.Controller {
		p.annotations[trustRoot] = AnchorsSum(c.TrustAnchors)
	}
	p.labels[controlPlane] = c.Namespace
}

// store writes the pod back to its object, without empty parts.
func (p *pod) store() {
	// set stores value under name, or removes the field if it has no elements.
	set := func(parent map[string]any, name string, value any, n int) {
		if n == 0 {
			delete(parent, name)
			return
		}
		parent[name] = value
	}
	set(p.metadata, "annotations", p.annotations, len(p.annotations))
	set(p.metadata, "labels", p.labels, len(p.labels))
	// Metadata comes after its parts, because it may be empty without them.
	set(p.object, "metadata", p.metadata, len(p.metadata))
	set(p.spec, "containers", p.containers, len(p.containers))
	set(p.spec, "initContainers", p.inits, len(p.inits))
	set(p.spec, "volumes", p.volumes, len(p.volumes))
	p.object["spec"] = p.spec
}

// name returns a list element's field "name".
func name(element any) string {
	m, _ := element.(map[string]any)
	s, _ := m["name"].(string)
	return s
}

// texts returns annotations as strings. It returns an error if a value is not a string.
func texts(annotations map[string]any) (map[string]string, error) {
	all := map[string]string{}
	for key, value := range annotations {
		s, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("annotation %s: %v must be a string; put it in quotes", key, value)
		}
		all[key] = s
	}
	return all, nil
}

// convert copies src to dst, a pointer, by encoding it as JSON. A number in an untyped value
// becomes a [json.Number], so that it does not lose digits.
func convert(src, dst any) error {
	text, err := json.Marshal(src)
	if err != nil {
		return err
	}
	return decode(text, dst)
}

// decode decodes the JSON in text into dst. Numbers keep their form, so that writing them back does not change them.
func decode(text []byte, dst any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(dst)
}
