package kubeobject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Status is what a controller writes to an object's status. Each kind of object uses only some of
// the fields.
type Status struct {
	Kind   string `json:"-"`
	Object Name   `json:"-"`

	Conditions   []Condition      `json:"conditions,omitempty"`
	Addresses    []Address        `json:"addresses,omitempty"`
	Listeners    []ListenerStatus `json:"listeners,omitempty"`
	Parents      []ParentStatus   `json:"parents,omitempty"`
	LoadBalancer *LoadBalancer    `json:"loadBalancer,omitempty"`
}

// ListenerStatus is the status of a Gateway's listener.
type ListenerStatus struct {
	Name           string      `json:"name"`
	AttachedRoutes int         `json:"attachedRoutes"`
	SupportedKinds []GroupKind `json:"supportedKinds"`
	Conditions     []Condition `json:"conditions"`
}

// ParentStatus is a route's status for one parent: a Gateway, Service or Server that it refers
// to.
type ParentStatus struct {
	ControllerName string          `json:"controllerName"`
	ParentRef      ParentReference `json:"parentRef"`
	Conditions     []Condition     `json:"conditions"`
}

// LoadBalancer lists the addresses at which clients reach an Ingress.
type LoadBalancer struct {
	Ingress []IngressAddress `json:"ingress,omitempty"`
}

// IngressAddress is either an IP address or a host name.
type IngressAddress struct {
	IP       string `json:"ip,omitempty"`
	Hostname string `json:"hostname,omitempty"`
}

// Condition is a condition in an object's status, such as "Accepted". Status is "True" or
// "False", and Reason and Message say why.
type Condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
}

// Is returns a condition with the status True. Without a reason, the name is used.
func Is(name, reason string) Condition {
	return Condition{Type: name, Status: "True", Reason: cmp.Or(reason, name)}
}

// IsNot returns a condition with the status False.
func IsNot(name, reason, message string) Condition {
	return Condition{Type: name, Status: "False", Reason: reason, Message: message}
}

// Merge returns the status of u after the given controller has written s, or nil if nothing
// changes. What others have written stays: parents of other controllers, and conditions that s
// does not mention. PartiallyInvalid is an exception, because it was about earlier rules. A
// condition keeps its transition time as long as its status stays the same; a new or changed one
// gets the time now, which is in RFC 3339 format.
func (s *Status) Merge(u *unstructured.Unstructured, controller, now string) (map[string]any, error) {
	current, _, err := unstructured.NestedMap(u.Object, "status")
	if err != nil {
		return nil, err
	}
	// The status is needed both as a map, which keeps unknown fields, and decoded.
	old, err := Decode[struct {
		Status Status `json:"status"`
	}](u)
	if err != nil {
		return nil, err
	}
	stored := &old.Status
	next := *s
	// All conditions get the generation of the object.
	update := transition{u.GetGeneration(), now}
	if s.Conditions != nil {
		next.Conditions = update.merge(stored.Conditions, s.Conditions)
	}
	next.Listeners = slices.Clone(s.Listeners)
	// A listener keeps its conditions by name.
	for i, l := range next.Listeners {
		var previous []Condition
		if index := slices.IndexFunc(stored.Listeners, func(o ListenerStatus) bool { return o.Name == l.Name }); index >= 0 {
			previous = stored.Listeners[index].Conditions
		}
		next.Listeners[i].Conditions = update.merge(previous, l.Conditions)
	}
	// Parents of this controller are replaced as a whole, because old ones may be gone.
	next.Parents = nil
	for _, p := range s.Parents {
		var previous []Condition
		for _, o := range stored.Parents {
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
	if strings.HasSuffix(s.Kind, "Route") { // the API requires the field, and other controllers have entries in it too
		parents, _ := changed["parents"].([]any)
		existing, _ := current["parents"].([]any)
		all := []any{}
		for _, p := range existing {
			if entry, _ := p.(map[string]any); entry["controllerName"] != controller {
				all = append(all, p)
			}
		}
		changed["parents"] = append(all, parents...)
	}
	merged := make(map[string]any, len(current))
	// Fields in changed replace those in current.
	for _, fields := range []map[string]any{current, changed} {
		maps.Copy(merged, fields)
	}
	// Without a difference, a write would only cause another event.
	if sameJSON(current, merged) {
		return nil, nil //nolint:nilnil // documented
	}
	return merged, nil
}

// transition is what an update stores in every condition: the object's generation and, if the
// condition's status is new, the time.
type transition struct {
	generation int64
	now        string
}

// merge returns current with the conditions in updated, which replace those of the same type. It removes
// a condition PartiallyInvalid that is not in updated.
func (t transition) merge(current, updated []Condition) []Condition {
	merged := slices.Clone(current)
	for _, c := range updated {
		c.ObservedGeneration = t.generation
		c.LastTransitionTime = t.now
		index := slices.IndexFunc(merged, func(o Condition) bool { return o.Type == c.Type })
		if index < 0 {
			merged = append(merged, c)
			continue
		}
		// The time is that of the last change of the status.
		if merged[index].Status == c.Status {
			c.LastTransitionTime = merged[index].LastTransitionTime
		}
		merged[index] = c
	}
	// This condition exists only while some rules are invalid, and they are no longer.
	return slices.DeleteFunc(merged, func(c Condition) bool {
		return c.Type == "PartiallyInvalid" && !slices.ContainsFunc(updated, func(a Condition) bool { return a.Type == c.Type })
	})
}

// toMap converts v to the form that the API server stores.
func toMap(v any) (m map[string]any, err error) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

// sameJSON reports whether a and b are equal as JSON.
func sameJSON(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
