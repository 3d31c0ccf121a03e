package template

import (
	"errors"
	"fmt"
	"reflect"

	"k8s.io/client-go/util/jsonpath"
)

// checker checks the fields of a template against the types of an object.
type checker struct {
	around []shape // shapes of the open ranges, the outermost first
	asks   bool    // the template has a field
}

// check returns the first error of the nodes of a template. at has the places of the
// actions in the text, and of is the type of the objects.
func check(nodes []jsonpath.Node, at []place, of reflect.Type) error {
	c := &checker{around: []shape{{of}}}
	n := 0
	var ranges []place
	for _, node := range nodes {
		action, ok := node.(*jsonpath.ListNode)
		if !ok {
			continue
		}
		here := place{1, "the template"}
		if n < len(at) {
			here = at[n]
		}
		n++
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

// action checks the expression between two braces.
func (c *checker) action(list *jsonpath.ListNode) error {
	now, opens := c.around[len(c.around)-1], false
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
			now, err = now.then(node)
		}
		if err != nil {
			return err
		}
	}
	if opens {
		c.around = append(c.around, now)
	}
	c.asks = c.asks || asks
	return nil
}
