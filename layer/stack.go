package layer

import (
	"fmt"
	"reflect"
	"slices"
)

// Stack is a list of named layers in the order in which a request passes them, the
// outermost first. A Stack is a value: each method returns a new Stack and leaves the old
// one unchanged. The zero Stack is empty and ready to use.
type Stack[Req, Rsp any] struct {
	layers []named[Req, Rsp]
	opts   []Option[Rsp]
}

type named[Req, Rsp any] struct {
	name  string
	layer Layer[Req, Rsp]
}

// NewStack returns an empty stack. The options apply to the layers that the methods of the
// stack add. They do not apply to layers that With adds.
func NewStack[Req, Rsp any](opts ...Option[Rsp]) Stack[Req, Rsp] {
	return Stack[Req, Rsp]{opts: opts}
}

// With returns a stack to which l was added below the other layers. [Describe] shows the
// layer by name. If l is nil, the stack is returned unchanged.
func (s Stack[Req, Rsp]) With(name string, l Layer[Req, Rsp]) Stack[Req, Rsp] {
	if l != nil {
		s.layers = append(slices.Clip(s.layers), named[Req, Rsp]{name, l})
	}
	return s
}

// Service returns leaf, the innermost service, wrapped in the layers of the stack. It
// panics if leaf or the result of a layer is nil.
func (s Stack[Req, Rsp]) Service(leaf Service[Req, Rsp]) Service[Req, Rsp] {
	check(leaf != nil, "Stack: nil service")
	if len(s.layers) == 0 {
		return leaf
	}
	st := &stacked[Req, Rsp]{
		levels: make([]level[Req, Rsp], len(s.layers)), leaf: leaf, classify: given(s.opts).classify,
	}
	st.Service = leaf
	for i, l := range slices.Backward(s.layers) {
		below := st.Service
		st.Service = l.layer(below)
		if st.Service == nil {
			panic(fmt.Sprintf("layer: Stack: layer %q returned nil", l.name))
		}
		st.levels[i] = level[Req, Rsp]{name: l.name}
		if !same(below, st.Service) {
			st.levels[i].svc = st.Service
		}
	}
	return st
}

// same reports whether the arguments below and above are the same service. This is so if a layer
// does nothing and returns its inner service. The result is false for types that cannot be
// compared, such as functions.
func same[Req, Rsp any](below, above Service[Req, Rsp]) bool {
	return reflect.ValueOf(below).Comparable() && below == above
}

// Layer returns a layer that applies all layers of the stack.
func (s Stack[Req, Rsp]) Layer() Layer[Req, Rsp] { return s.Service }

// stacked is the service of a stack. It stores the names of the layers, because a service
// that is not a [Describer] is shown by the name of its layer.
type stacked[Req, Rsp any] struct {
	Service[Req, Rsp]
	levels   []level[Req, Rsp]
	leaf     Service[Req, Rsp]
	classify Classifier[Rsp] // nil if WithClassifier was not used
}

func (s *stacked[Req, Rsp]) Classifier() Classifier[Rsp] {
	if s.classify != nil {
		return s.classify
	}
	return ClassifierOf(s.leaf)
}

type level[Req, Rsp any] struct {
	name string
	svc  Service[Req, Rsp] // the service that the layer returned; nil if the layer does nothing
}

// describe returns the node of the outermost layer. The nodes of the other layers and leaf,
// the node of the innermost service, follow as Next.
func (s *stacked[Req, Rsp]) describe(leaf Node) Node {
	next := leaf
	for _, l := range slices.Backward(s.levels) {
		below := next
		if nested, ok := l.svc.(*stacked[Req, Rsp]); ok {
			next = nested.describe(below)
			continue
		}
		next = Node{Name: l.name, Next: &below}
		if d, ok := l.svc.(Describer); ok {
			own := d.Describe()
			next.State, next.Children = own.State, own.Children
		}
	}
	return next
}
