package layer

import (
	"fmt"
	"reflect"
	"slices"
)

// Stack is an ordered list of named layers, written and printed in the order
// in which a request meets them: outermost first. A Stack is a value: each
// method returns a new one, and two stacks may grow from the same beginning.
// The zero Stack is empty and ready to use.
type Stack[Req, Rsp any] struct {
	layers []named[Req, Rsp]
	opts   []Option[Rsp]
}

type named[Req, Rsp any] struct {
	name  string
	layer Layer[Req, Rsp]
}

// NewStack returns an empty stack. The options hold for every layer of this
// package that is added to it by its own method.
func NewStack[Req, Rsp any](opts ...Option[Rsp]) Stack[Req, Rsp] {
	return Stack[Req, Rsp]{opts: opts}
}

// With adds a layer below those already there. A nil layer adds nothing.
func (s Stack[Req, Rsp]) With(name string, l Layer[Req, Rsp]) Stack[Req, Rsp] {
	if l != nil {
		s.layers = append(slices.Clip(s.layers), named[Req, Rsp]{name, l})
	}
	return s
}

// Service puts the stack on top of leaf. A nil leaf, or a nil result of a
// layer, panics.
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

// same reports whether a layer that was given the first does nothing. Of some
// types, such as functions, that cannot be seen.
func same[Req, Rsp any](below, above Service[Req, Rsp]) bool {
	return reflect.ValueOf(below).Comparable() && below == above
}

// Layer returns the stack as one layer.
func (s Stack[Req, Rsp]) Layer() Layer[Req, Rsp] { return s.Service }

// stacked remembers what a stack was made of, so that it can be described
// even where a layer does not describe itself.
type stacked[Req, Rsp any] struct {
	Service[Req, Rsp]
	levels   []level[Req, Rsp]
	leaf     Service[Req, Rsp]
	classify Classifier[Rsp] // nil if no option names one
}

func (s *stacked[Req, Rsp]) Classifier() Classifier[Rsp] {
	if s.classify != nil {
		return s.classify
	}
	return ClassifierOf(s.leaf)
}

type level[Req, Rsp any] struct {
	name string
	svc  Service[Req, Rsp] // nil of a layer that does nothing: it has no state
}

// describe puts the levels above the node of the leaf.
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
