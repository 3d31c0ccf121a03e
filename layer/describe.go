package layer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// Describer is a Service that describes itself. Describe returns the state of this
// service. Its Children are the services that it created, such as endpoints or routes.
// The function [Describe] adds the service that it wraps.
type Describer interface {
	Describe() Node
}

// Node describes one service. Its Children and Next make it a tree. It prints as text (see
// String) and marshals to JSON as an object with the members name, state, children and next.
type Node struct {
	Name     string `json:"name"`
	State    State  `json:"state,omitempty"`
	Children []Node `json:"children,omitempty"` // created by this service
	Next     *Node  `json:"next,omitempty"`     // wrapped by this service
}

// State is the ordered list of attributes of a node.
type State []Attr

// Attr is one attribute of State. Value is a string, a number, a bool, or another type
// that prints and marshals well.
type Attr struct {
	Key   string
	Value any
}

// MarshalJSON returns an object with its members in order. Values that implement
// [fmt.Stringer], such as durations, infinite floats and NaN are written as strings.
func (s State) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, a := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		value := a.Value
		switch v := value.(type) {
		case fmt.Stringer:
			value = v.String()
		case float64:
			if math.IsInf(v, 0) || math.IsNaN(v) {
				value = fmt.Sprint(v)
			}
		}
		key, err := json.Marshal(a.Key)
		if err != nil {
			return nil, err
		}
		val, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("state %s: %w", a.Key, err)
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(val)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Get returns the value of the first attribute called key, or nil.
func (s State) Get(key string) any {
	for _, a := range s {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}

// String returns the tree in request order with one line per node. Children are
// indented, Next is not.
func (n Node) String() string {
	var b strings.Builder
	n.print(&b, "")
	return b.String()
}

func (n Node) print(b *strings.Builder, indent string) {
	for node := &n; node != nil; node = node.Next {
		b.WriteString(indent)
		if len(node.State) == 0 {
			b.WriteString(node.Name)
		} else {
			fmt.Fprintf(b, "%-10s", node.Name)
		}
		for _, a := range node.State {
			fmt.Fprintf(b, " %s=%v", a.Key, a.Value)
		}
		b.WriteByte('\n')
		for _, child := range node.Children {
			child.print(b, indent+"  ")
		}
	}
}

// Describe returns the current state of svc and of the services that it wraps, as a tree. It
// follows services of a [Stack] and of the layers of this library. A service that is not a
// [Describer] is shown by its type and ends the tree. Describe may be called at any time.
func Describe[Req, Rsp any](svc Service[Req, Rsp]) Node {
	if s, ok := svc.(*stacked[Req, Rsp]); ok {
		return s.describe(Describe(s.leaf))
	}
	n := describeOne(svc)
	if w, ok := svc.(interface{ Next() Service[Req, Rsp] }); ok {
		next := Describe(w.Next())
		n.Next = &next
	}
	return n
}

func describeOne(svc any) Node {
	if d, ok := svc.(Describer); ok {
		return d.Describe()
	}
	name := fmt.Sprintf("%T", svc)
	name, _, _ = strings.Cut(name, "[")
	return Node{Name: strings.TrimPrefix(name, "*")}
}

// Explanation is the ordered list of choices that layers made for one request: the
// route, the split, and the compared endpoints of each attempt. [Explain] returns one.
// It is safe for concurrent use. A nil *Explanation records nothing.
type Explanation struct {
	mu    sync.Mutex
	notes []Node
}

// Add records one choice: a node with the name of the layer, the choice and its reason
// as state, and the candidates as children.
func (e *Explanation) Add(choice Node) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, choice)
}

// Choices returns the recorded choices.
func (e *Explanation) Choices() []Node {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.notes)
}

// String returns the choices in the format of [Node.String].
func (e *Explanation) String() string {
	var b strings.Builder
	for _, n := range e.Choices() {
		b.WriteString(n.String())
	}
	return b.String()
}

// MarshalJSON returns an array of nodes.
func (e *Explanation) MarshalJSON() ([]byte, error) {
	return json.Marshal(append([]Node{}, e.Choices()...))
}
