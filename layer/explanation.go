package layer

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

// Explanation is what layers said about the choices that they made for one
// request, in the order in which they made them: the route, the split, the
// endpoints that were looked at, and again for each try. Ask for one with
// [Explain]. It is safe for concurrent use; a nil Explanation takes nothing.
type Explanation struct {
	mu    sync.Mutex
	notes []Node
}

// Add takes one choice: a node with the name of the layer, what it chose and
// why as its state, and what it chose from as its children.
func (e *Explanation) Add(choice Node) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, choice)
}

// Choices returns what was said so far.
func (e *Explanation) Choices() []Node {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.notes)
}

// String prints the choices, each as a [Node] prints.
func (e *Explanation) String() string {
	var b strings.Builder
	for _, n := range e.Choices() {
		b.WriteString(n.String())
	}
	return b.String()
}

// MarshalJSON writes an array of nodes.
func (e *Explanation) MarshalJSON() ([]byte, error) {
	return json.Marshal(append([]Node{}, e.Choices()...))
}
