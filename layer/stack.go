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

// named is a layer and its name for Describe.
type named[Req, Rsp any] struct {
	name  string
	layer Layer[Req, Rsp]
}

// NewStack returns an empty stack. The options apply to the layers that the methods of the
// stack add. They do not apply to layers that With adds.
func NewStack[Req, Rsp any](opts ...Option[Rsp]) Stack[Req, Rsp] {
	return Stack[Req, Rsp]{opts: opts}
}

// WithTarget returns a stack in which layers that are added later show the name target in errors and
// descriptions. A stack needs no option [WithTarget].
func (s Stack[Req, Rsp]) WithTarget(target string) Stack[Req, Rsp] {
	s.opts = append(slices.Clip(s.opts), WithTarget[Rsp](target))
	return s
}

// WithMetrics returns a stack in which layers that are added later record their measurements in i. A stack
// needs no option [WithMetrics]. The method Metrics adds a layer instead, which measures all requests.
func (s Stack[Req, Rsp]) WithMetrics(i Instruments) Stack[Req, Rsp] {
	s.opts = append(slices.Clip(s.opts), WithMetrics[Rsp](i))
	return s
}

// With returns a stack to which l was added below the other layers. [Describe] shows the
// layer by name. If l is nil, the stack is returned unchanged. Most layers of this package have a method
// of Stack instead, which also passes the stack's options to the layer.
func (s Stack[Req, Rsp]) With(name string, l Layer[Req, Rsp]) Stack[Req, Rsp] {
	if l != nil {
		// Clip makes append copy the slice, so that stacks derived from s do not overwrite each other's layers.
		s.layers = append(slices.Clip(s.layers), named[Req, Rsp]{name, l})
	}
	return s
}

// Service returns leaf, the innermost service, wrapped in the layers of the stack. It panics if
// leaf or a layer's result is nil.
func (s Stack[Req, Rsp]) Service(leaf Service[Req, Rsp]) Service[Req, Rsp] {
	check(leaf != nil, "Stack: nil service")
	if len(s.layers) == 0 {
		return leaf
	}
	st := &stacked[Req, Rsp]{
		levels: make([]level[Req, Rsp], len(s.layers)), leaf: leaf, classify: applyOptions(s.opts).classify,
	}
	st.Service = leaf
	// From the innermost layer outwards.
	for i, l := range slices.Backward(s.layers) {
		inner := st.Service
		st.Service = l.layer(inner)
		if st.Service == nil {
			panic(fmt.Sprintf("layer: Stack: layer %q returned nil", l.name))
		}
		st.levels[i] = level[Req, Rsp]{name: l.name}
		// A layer that does nothing is shown by its name only.
		if !sameService(inner, st.Service) {
			st.levels[i].svc = st.Service
		}
	}
	return st
}

// sameService reports whether a layer has returned its inner service, because it does nothing. The
// result is false for services that cannot be compared, such as functions.
func sameService[Req, Rsp any](inner, outer Service[Req, Rsp]) bool {
	return reflect.ValueOf(inner).Comparable() && inner == outer
}

// Layer returns a layer that applies all layers of the stack.
func (s Stack[Req, Rsp]) Layer() Layer[Req, Rsp] { return s.Service }

// stacked is a stack's service. It stores the layers' names, because a service that is not a
// [Describer] is shown by its layer name.
type stacked[Req, Rsp any] struct {
	Service[Req, Rsp]
	levels   []level[Req, Rsp]
	leaf     Service[Req, Rsp]
	classify Classifier[Rsp] // nil if WithClassifier was not used
}

// Classifier implements [Classified]: it returns that of a layer, or else that of the leaf.
func (s *stacked[Req, Rsp]) Classifier() Classifier[Rsp] {
	if s.classify != nil {
		return s.classify
	}
	return ClassifierOf(s.leaf)
}

// level is one layer of a stacked service.
type level[Req, Rsp any] struct {
	name string
	svc  Service[Req, Rsp] // the service that the layer returned; nil if the layer does nothing
}

// describe returns the node of the outermost layer. The nodes of the layers below it, and finally leaf,
// the innermost service's node, are linked by Next.
func (s *stacked[Req, Rsp]) describe(leaf Node) Node {
	next := leaf
	// From the innermost layer outwards, as Next points inwards.
	for _, l := range slices.Backward(s.levels) {
		inner := next
		// A stack that was added as one layer is shown with its own layers.
		if nested, ok := l.svc.(*stacked[Req, Rsp]); ok {
			next = nested.describe(inner)
			continue
		}
		next = Node{Name: l.name, Next: &inner}
		if d, ok := l.svc.(Describer); ok {
			node := d.Describe()
			next.State, next.Children = node.State, node.Children
		}
	}
	return next
}
