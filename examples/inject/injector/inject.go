package injector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The annotations and the label that [Config.Inject] sets on a pod, and the value of
// createdBy. [Uninject] removes these annotations and the label.
const (
	createdBy       = "linkerd.io/created-by"
	proxyVersion    = "linkerd.io/proxy-version"
	trustRoot       = "linkerd.io/trust-root-sha256"
	controlPlane    = "linkerd.io/control-plane-ns"
	createdByInject = "gotower/inject"
)

// Result is the result of the injection of one pod.
type Result struct {
	Skipped  string   // why the pod is unchanged; "" means that it was injected
	Warnings []string // annotations that were ignored
}

// Inject adds the proxy to pod, which has the fields metadata and spec of a Pod or of a pod
// template. The argument namespace has the annotations of the pod's namespace. The pod inherits
// the annotations that configure the proxy, unless it has the same annotation itself.
//
// Inject skips a pod that disables injection or cannot have a proxy. Result.Skipped then has the
// reason. After an error the pod is unchanged.
func (c Config) Inject(pod map[string]any, namespace map[string]string) (Result, error) {
	p, err := newPod(pod)
	if err != nil {
		return Result{}, err
	}
	if skipped := p.skip(); skipped != "" {
		return Result{Skipped: skipped}, nil
	}
	inherited := map[string]string{}
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
	if err := checkEnviron(env, c.TrustAnchors); err != nil {
		return Result{}, err
	}
	var first, proxy map[string]any
	var added []any
	for to, from := range map[any]any{
		&first: o.initContainer(c, rules), &proxy: o.proxyContainer(c, env), &added: volumes(c),
	} {
		if err := convert(from, to); err != nil {
			return Result{}, err
		}
	}
	if o.native {
		p.inits = slices.Concat([]any{first, proxy}, p.inits)
	} else {
		p.inits = append(slices.Clip(p.inits), first)
		p.containers = slices.Concat([]any{proxy}, p.containers)
	}
	p.volumes = append(slices.Clip(p.volumes), added...)
	p.annotate(c, o, inherited)
	p.store()
	return Result{Warnings: warnings}, nil
}

// Uninject removes from pod all that [Config.Inject] added, and reports whether the pod had
// a proxy. Annotations that were copied from a namespace remain.
func Uninject(pod map[string]any) (bool, error) {
	p, err := newPod(pod)
	if err != nil || !p.injected() {
		return false, err
	}
	without := func(all []any, added func(name string) bool) []any {
		return slices.DeleteFunc(slices.Clone(all), func(v any) bool { return added(name(v)) })
	}
	p.containers = without(p.containers, func(name string) bool { return name == ProxyName })
	p.inits = without(p.inits, func(name string) bool { return name == ProxyName || name == initName })
	p.volumes = without(p.volumes, isVolume)
	for _, key := range []string{createdBy, proxyVersion, trustRoot} {
		delete(p.annotations, key)
	}
	delete(p.labels, controlPlane)
	p.store()
	return true, nil
}

// isVolume reports whether name is the name of a volume that [Config.Inject] adds.
func isVolume(name string) bool {
	return slices.Contains([]string{lockName, identityName, tokenName}, name)
}

// pod has the parts of a Pod or a pod template that the injector changes. The method store
// writes these parts back to the field object, the decoded Pod or template.
type pod struct {
	metadata, spec             map[string]any
	annotations, labels        map[string]any
	containers, inits, volumes []any

	object map[string]any
}

func newPod(object map[string]any) (*pod, error) {
	p := &pod{object: object}
	var err error
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
	elements := func(name string) []any {
		l, ok := p.spec[name].([]any)
		if !ok && p.spec[name] != nil && err == nil {
			err = fmt.Errorf("%s: must be a list", name)
		}
		return l
	}
	p.metadata, p.spec = field(object, "metadata"), field(object, "spec")
	p.annotations, p.labels = field(p.metadata, "annotations"), field(p.metadata, "labels")
	p.containers, p.inits, p.volumes = elements("containers"), elements("initContainers"), elements("volumes")
	return p, err
}

// injected reports whether the pod has a proxy.
func (p *pod) injected() bool {
	return slices.ContainsFunc(slices.Concat(p.containers, p.inits), func(c any) bool { return name(c) == ProxyName })
}

// skip returns the reason why the pod cannot have a proxy, or "" if it can.
func (p *pod) skip() string {
	selector, _ := p.spec["nodeSelector"].(map[string]any)
	system, _ := p.spec["os"].(map[string]any)
	host, _ := p.spec["hostNetwork"].(bool)
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

// annotate sets the annotations and the label of the injector, and the annotations that the
// pod inherits from its namespace.
func (p *pod) annotate(c Config, o options, inherited map[string]string) {
	for key, value := range inherited {
		if key != InjectAnnotation {
			p.annotations[key] = value
		}
	}
	_, version, ok := strings.Cut(o.proxyImage[strings.LastIndexByte(o.proxyImage, '/')+1:], ":")
	if !ok {
		version = "latest"
	}
	p.annotations[createdBy] = createdByInject
	p.annotations[proxyVersion] = version
	if c.TrustAnchors != "" && !c.Controller {
		p.annotations[trustRoot] = AnchorsSum(c.TrustAnchors)
	}
	p.labels[controlPlane] = c.Namespace
}

// store writes the parts of the pod to its object. Empty parts are left out.
func (p *pod) store() {
	set := func(parent map[string]any, name string, value any, n int) {
		if n == 0 {
			delete(parent, name)
			return
		}
		parent[name] = value
	}
	set(p.metadata, "annotations", p.annotations, len(p.annotations))
	set(p.metadata, "labels", p.labels, len(p.labels))
	set(p.object, "metadata", p.metadata, len(p.metadata))
	set(p.spec, "containers", p.containers, len(p.containers))
	set(p.spec, "initContainers", p.inits, len(p.inits))
	set(p.spec, "volumes", p.volumes, len(p.volumes))
	p.object["spec"] = p.spec
}

// name returns the value of the field "name" of an element of a list.
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

// convert encodes the first argument as JSON, and decodes the JSON into the second argument, a
// pointer. A number in an untyped value becomes a [json.Number], so that it does not lose digits.
func convert(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return decode(text, to)
}

func decode(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(to)
}
