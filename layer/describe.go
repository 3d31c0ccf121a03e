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

// Describer is implemented by a Service that describes itself. Describe returns a node with this
// service's state. The node's children are the services that it created, such as endpoints or
// routes. The function [Describe] adds the wrapped service's node.
type Describer interface {
	Describe() Node
}

// Node describes one service. Its Children and Next make it a tree. [Node.String] formats
// the tree as text. In JSON a node is an object with the members name, state, children and
// next.
type Node struct {
	Name     string `json:"name"`
	State    State  `json:"state,omitempty"`
	Children []Node `json:"children,omitempty"` // services that this one created
	Next     *Node  `json:"next,omitempty"`     // the service that this one wraps
}

// State lists the attributes of a [Node] in display order.
type State []Attr

// Attr is one attribute of a [State]. Value is a string, a number, a bool, or another type
// that fmt and encoding/json can format.
type Attr struct {
	Key   string
	Value any
}

// MarshalJSON returns a JSON object with the attributes in order. It writes infinite floats, NaN
// and values that implement [fmt.Stringer], such as durations, as strings.
func (s State) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, a := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		// JSON has no infinite numbers, and a duration is easier to read as text.
		value := a.Value
		// Other values are left to encoding/json.
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

// Get returns the value of the first attribute with the given key, or nil if the key is not
// found.
func (s State) Get(key string) any {
	for _, a := range s {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}

// String returns the tree as text, with one line per node, in the order in which a request passes
// the nodes. The nodes in Children follow the line of n and are indented. The node in the field
// Next follows after them and is not indented.
func (n Node) String() string {
	var b strings.Builder
	n.print(&b, "")
	return b.String()
}

// print writes n, its children, which are indented further, and the nodes after it.
func (n Node) print(b *strings.Builder, indent string) {
	// Next is the layer below: it gets a line of its own with the same indent.
	for node := &n; node != nil; node = node.Next {
		b.WriteString(indent)
		// Names are padded so that the states are aligned.
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

// Describe returns a tree with the current state of svc and the services that it wraps. It
// follows a [Stack]'s layers and every service with a Next method, which all layers of this
// library provide. A service that is not a [Describer] is shown by its type. You may call
// Describe at any time.
func Describe[Req, Rsp any](svc Service[Req, Rsp]) Node {
	// A stack knows the names and the order of its layers.
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

// describeOne returns the node of svc alone: its own description, or its type's name without type
// parameters.
func describeOne(svc any) Node {
	if d, ok := svc.(Describer); ok {
		return d.Describe()
	}
	name := fmt.Sprintf("%T", svc)
	name, _, _ = strings.Cut(name, "[")
	return Node{Name: strings.TrimPrefix(name, "*")}
}

// Explanation is the list of the choices that layers made for one request, in order: the route, a
// traffic split's target, and the endpoints that each attempt compared. [Explain] returns one. It
// is safe for concurrent use. A nil *Explanation records nothing.
type Explanation struct {
	mu    sync.Mutex
	notes []Node
}

// Add records one choice as a node. The node's name is the layer that made the choice. Its state
// names the chosen candidate and the reason, and its children are the candidates.
func (e *Explanation) Add(choice Node) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, choice)
}

// Choices returns a copy of the recorded choices.
func (e *Explanation) Choices() []Node {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.notes)
}

// String returns the choices, each in the format of [Node.String].
func (e *Explanation) String() string {
	var b strings.Builder
	for _, n := range e.Choices() {
		b.WriteString(n.String())
	}
	return b.String()
}

// MarshalJSON returns a JSON array with one [Node] for each choice.
func (e *Explanation) MarshalJSON() ([]byte, error) {
	return json.Marshal(append([]Node{}, e.Choices()...))
}
