package kubeobject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Status is the status that a controller writes to an object. Each kind of objects has only
// some of the fields.
type Status struct {
	Kind   string `json:"-"`
	Object Name   `json:"-"`

	Conditions   []Condition      `json:"conditions,omitempty"`
	Addresses    []Address        `json:"addresses,omitempty"`
	Listeners    []ListenerStatus `json:"listeners,omitempty"`
	Parents      []ParentStatus   `json:"parents,omitempty"`
	LoadBalancer *LoadBalancer    `json:"loadBalancer,omitempty"`
}

// ListenerStatus is the status of a listener of a Gateway.
type ListenerStatus struct {
	Name           string      `json:"name"`
	AttachedRoutes int         `json:"attachedRoutes"`
	SupportedKinds []GroupKind `json:"supportedKinds"`
	Conditions     []Condition `json:"conditions"`
}

// ParentStatus is the status of a route for one of its parents, that is, for a Gateway,
// Service or Server to which it refers.
type ParentStatus struct {
	ControllerName string          `json:"controllerName"`
	ParentRef      ParentReference `json:"parentRef"`
	Conditions     []Condition     `json:"conditions"`
}

// LoadBalancer has the addresses at which clients reach an Ingress.
type LoadBalancer struct {
	Ingress []IngressAddress `json:"ingress,omitempty"`
}

// IngressAddress is an address of an Ingress: either an IP address or a host name.
type IngressAddress struct {
	IP       string `json:"ip,omitempty"`
	Hostname string `json:"hostname,omitempty"`
}

// Condition is a condition in the status of an object, such as "Accepted". Status is "True"
// or "False". Reason and Message give the cause.
type Condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
}

// Is returns the condition with the given name and the status True. If reason is "", the
// reason is the name.
func Is(name, reason string) Condition {
	return Condition{Type: name, Status: "True", Reason: cmp.Or(reason, name)}
}

// IsNot returns the condition with the given name and the status False.
func IsNot(name, reason, message string) Condition {
	return Condition{Type: name, Status: "False", Reason: reason, Message: message}
}

// Merge returns the status of the object u after the given controller has written s, or nil if
// the status does not change. The result keeps the parents in u that belong to other controllers.
// It keeps the conditions in u that s does not set, except PartiallyInvalid, because that was
// about earlier rules. A condition with an unchanged status keeps its transition
// time. A new or changed condition gets the time now, in the format of RFC 3339.
func (s *Status) Merge(u *unstructured.Unstructured, controller, now string) (map[string]any, error) {
	current, _, err := unstructured.NestedMap(u.Object, "status")
	if err != nil {
		return nil, err
	}
	old, err := Decode[struct {
		Status Status `json:"status"`
	}](u)
	if err != nil {
		return nil, err
	}
	before, next, update := &old.Status, *s, transition{u.GetGeneration(), now}
	if s.Conditions != nil {
		next.Conditions = update.merge(before.Conditions, s.Conditions)
	}
	next.Listeners = slices.Clone(s.Listeners)
	for i, l := range next.Listeners {
		var previous []Condition
		if at := slices.IndexFunc(before.Listeners, func(o ListenerStatus) bool { return o.Name == l.Name }); at >= 0 {
			previous = before.Listeners[at].Conditions
		}
		next.Listeners[i].Conditions = update.merge(previous, l.Conditions)
	}
	next.Parents = nil
	for _, p := range s.Parents {
		var previous []Condition
		for _, o := range before.Parents {
			if o.ControllerName == controller && sameJSON(o.ParentRef, p.ParentRef) {
				previous = o.Conditions
			}
		}
		p.Conditions = update.merge(previous, p.Conditions)
		next.Parents = append(next.Parents, p)
	}
	changed, err := toMap(next)
	if err != nil {
		return nil, err
	}
	if s.Kind == "HTTPRoute" || s.Kind == "GRPCRoute" { // required, and others have entries too
		parents, _ := changed["parents"].([]any)
		others, _ := current["parents"].([]any)
		all := []any{}
		for _, p := range others {
			if entry, _ := p.(map[string]any); entry["controllerName"] != controller {
				all = append(all, p)
			}
		}
		changed["parents"] = append(all, parents...)
	}
	merged := make(map[string]any, len(current))
	for _, from := range []map[string]any{current, changed} {
		maps.Copy(merged, from)
	}
	if sameJSON(current, merged) {
		return nil, nil //nolint:nilnil // documented
	}
	return merged, nil
}

// transition has two values that an update of a status sets in conditions. Each condition
// gets the generation of the object. A condition with a new status also gets the time now.
type transition struct {
	generation int64
	now        string
}

func (t transition) merge(before, after []Condition) []Condition {
	merged := slices.Clone(before)
	for _, c := range after {
		c.ObservedGeneration, c.LastTransitionTime = t.generation, t.now
		at := slices.IndexFunc(merged, func(o Condition) bool { return o.Type == c.Type })
		if at < 0 {
			merged = append(merged, c)
			continue
		}
		if merged[at].Status == c.Status {
			c.LastTransitionTime = merged[at].LastTransitionTime
		}
		merged[at] = c
	}
	return slices.DeleteFunc(merged, func(c Condition) bool { // of an earlier rule
		return c.Type == "PartiallyInvalid" && !slices.ContainsFunc(after, func(a Condition) bool { return a.Type == c.Type })
	})
}

func toMap(v any) (m map[string]any, err error) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

func sameJSON(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
