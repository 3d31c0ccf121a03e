package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// shape holds the types that one value in an object can have. A template is checked by shapes
// before the first object exists. An empty shape means any type.
type shape []reflect.Type

// then returns the types of what node, such as a field or an index, selects from a value with
// shape s. It returns an error if no type in s allows that.
func (s shape) then(node jsonpath.Node) (shape, error) {
	if s = s.plain(); s == nil {
		return nil, nil
	}
	// Each kind of node selects in its own way.
	switch node := node.(type) {
	case *jsonpath.FieldNode:
		return s.field(node.Value)
	case *jsonpath.ArrayNode:
		return s.elements("[…]")
	case *jsonpath.FilterNode:
		return s.filtered(node)
	case *jsonpath.WildcardNode:
		return s.all()
	case *jsonpath.UnionNode:
		return s.union(node)
	}
	return nil, nil // other nodes, such as the recursive descent .., can select values of any type
}

// plain returns s with pointers replaced by their element types. If s contains an interface or a
// type with a method MarshalJSON, its values' fields are unknown, and plain returns nil, which
// means any type.
func (s shape) plain() shape {
	// A type with its own MarshalJSON prints something else than its fields.
	marshaler := reflect.TypeFor[json.Marshaler]()
	all := make(shape, 0, len(s))
	for _, t := range s {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Interface || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
			return nil
		}
		all = append(all, t)
	}
	// An empty shape would mean that nothing can be selected.
	if len(all) == 0 {
		return nil
	}
	return all
}

func isList(t reflect.Type) bool {
	return (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() != reflect.Uint8 // []byte is a string in JSON
}

// field returns the types of the field name in values of shape s.
func (s shape) field(name string) (shape, error) {
	if name == "" {
		return nil, errors.New("missing name after the dot; the whole object is {@}")
	}
	// found contains the field's types, and there the names of all fields, for the error.
	var found shape
	var there []string
	for _, t := range s {
		switch {
		// A map may have any key.
		case t.Kind() == reflect.Map:
			found = append(found, t.Elem())
		case t.Kind() == reflect.Struct:
			for f, member := range members(t) {
				if f == name {
					found = append(found, member)
				}
				there = append(there, f)
			}
		case isList(t):
			// A common mistake is to forget that the field is one of a list's elements.
			return nil, fmt.Errorf("%s is of the elements of a list: [*].%s", name, name)
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case len(there) == 0:
		return nil, fmt.Errorf("unknown field %s: a value has no fields", name)
	}
	slices.Sort(there)
	return nil, fmt.Errorf("unknown field %s; the fields are %s", name, strings.Join(slices.Compact(there), ", "))
}

// members yields the JSON name and the type of each field in the struct t.
func members(t reflect.Type) func(func(string, reflect.Type) bool) {
	return func(yield func(string, reflect.Type) bool) {
		for f := range t.Fields() {
			// The name is that of encoding/json.
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				name = f.Name
			}
			if f.IsExported() && name != "-" && !yield(name, f.Type) {
				return
			}
		}
	}
}

// elements returns the types of the elements of lists in s. position is how the template writes the selection.
func (s shape) elements(position string) (shape, error) {
	var found shape
	// Types that are no lists select nothing, which is no mistake as long as another type does.
	for _, t := range s {
		if isList(t) {
			found = append(found, t.Elem())
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s needs a list", position)
	}
	return found, nil
}

// all returns the types of what a wildcard selects: a list's or map's elements, or a struct's fields.
func (s shape) all() (shape, error) {
	var found shape
	for _, t := range s {
		// Types without parts are skipped, because another possible type may have some.
		switch {
		case t.Kind() == reflect.Struct:
			for _, member := range members(t) {
				found = append(found, member)
			}
		case t.Kind() == reflect.Map, isList(t):
			found = append(found, t.Elem())
		}
	}
	if len(found) == 0 {
		return nil, errors.New("a value has no fields")
	}
	return found, nil
}

// filtered returns the types of the elements that a filter selects, which are all of the list's element types.
func (s shape) filtered(node *jsonpath.FilterNode) (shape, error) {
	found, err := s.elements("[?(…)]")
	if err != nil {
		return nil, err
	}
	// Both sides of the comparison begin at an element of the list.
	for _, operand := range []*jsonpath.ListNode{node.Left, node.Right} {
		if _, err := found.follow(operand); err != nil {
			return nil, err
		}
	}
	// client-go finds other operators only when it evaluates the template.
	switch node.Operator {
	case "exists", "==", "!=", "<", ">", "<=", ">=":
		return found, nil
	}
	return nil, fmt.Errorf("%s is not an operator; the operators are == != < > <= >=", node.Operator)
}

// union returns the types of what any of the parts of a union selects.
func (s shape) union(node *jsonpath.UnionNode) (shape, error) {
	var found shape
	for _, list := range node.Nodes {
		result, err := s.follow(list)
		// A part of any type makes the whole union one of any type.
		if result == nil || err != nil {
			return nil, err
		}
		found = append(found, result...)
	}
	return found, nil
}

// follow returns the shape of what list selects from a value with shape s. list is a chain of
// nodes, such as .a[0].b, in which each node selects from what the previous one selected. After a
// literal, such as a text, a number or a bool, the shape is empty, which means any type.
func (s shape) follow(list *jsonpath.ListNode) (shape, error) {
	for _, node := range list.Nodes {
		switch node := node.(type) {
		case *jsonpath.TextNode, *jsonpath.IntNode, *jsonpath.FloatNode, *jsonpath.BoolNode:
			// A literal does not depend on the value.
			s = nil
		case *jsonpath.IdentifierNode:
			return nil, fmt.Errorf("%s is not known: a field is @.%s, text is %q", node.Name, node.Name, node.Name)
		default:
			var err error
			if s, err = s.then(node); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}
