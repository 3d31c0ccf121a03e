package template

import (
	"errors"
	"fmt"
	"reflect"

	"k8s.io/client-go/util/jsonpath"
)

// checker checks that the fields that a template uses exist in the type of the objects.
type checker struct {
	around []shape // shapes of the object and the open ranges around, outermost first
	asks   bool    // whether the template prints a value of the object
}

// check returns the first mistake in a template for objects of this type, such as a field that
// the type lacks. nodes is the parsed template, and actions tells each action's position for the
// error.
func check(nodes []jsonpath.Node, actions []place, object reflect.Type) error {
	// c.around begins with the whole object, and grows with each range.
	c := &checker{around: []shape{{object}}}
	n := 0
	// ranges contains where each open range began.
	var ranges []place
	for _, node := range nodes {
		action, ok := node.(*jsonpath.ListNode)
		if !ok {
			continue
		}
		// Text between actions is no ListNode, so n counts only actions.
		here := place{column: 1, text: "the template"}
		if n < len(actions) {
			here = actions[n]
		}
		n++
		// The action may have opened or ended a range.
		deep := len(c.around)
		if err := c.action(action); err != nil {
			return here.in(err)
		}
		switch {
		case len(c.around) > deep:
			ranges = append(ranges, here)
		case len(c.around) < deep:
			ranges = ranges[:len(ranges)-1]
		}
	}
	if len(ranges) > 0 {
		return ranges[len(ranges)-1].in(errors.New("missing {end}"))
	}
	if !c.asks {
		return errors.New("it asks for nothing: write {.requestInitEvent.path}")
	}
	return nil
}

// action checks list, the parsed expression between two braces. If the expression is {range},
// the following expressions are checked for the elements of the range, until {end}.
func (c *checker) action(list *jsonpath.ListNode) error {
	// now is the shape at which the expression has arrived, and nil for plain values.
	now := c.around[len(c.around)-1]
	opens := false // the action begins a range
	// An empty action, {}, prints the object.
	asks := len(list.Nodes) == 0
	for _, node := range list.Nodes {
		var err error
		switch node := node.(type) {
		case *jsonpath.IdentifierNode:
			switch {
			case node.Name == "range":
				opens = true
			case node.Name == "end" && len(c.around) > 1:
				c.around = c.around[:len(c.around)-1]
			case node.Name == "end":
				err = errors.New("no range to end")
			default:
				err = fmt.Errorf("%s is not known: a field is {.%s}, text is {%q}", node.Name, node.Name, node.Name)
			}
		case *jsonpath.TextNode, *jsonpath.IntNode, *jsonpath.FloatNode, *jsonpath.BoolNode:
			now = nil
		default:
			asks = true
			// A field or an index leads to another shape.
			now, err = now.then(node)
		}
		if err != nil {
			return err
		}
	}
	// Later actions start at the elements of the range.
	if opens {
		c.around = append(c.around, now)
	}
	c.asks = c.asks || asks
	return nil
}
