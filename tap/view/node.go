package view

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// node is a layer.Node in the form that is sent to the page as JSON.
type node struct {
	Name     string  `json:"name"`
	State    []attr  `json:"state,omitempty"`
	Children []*node `json:"children,omitempty"`
	Next     *node   `json:"next,omitempty"`
}

// attr is one attribute in the state of a layer: its key and its value. As an array, it is short in
// JSON.
type attr [2]any

// These are the limits for a tree: how many nodes it may contain, how deep, and how many bytes a
// text.
const (
	maxNodes = 2000
	maxDepth = 64
	maxText  = 500
)

// converter converts a tree of nodes for the page. left is how many more nodes it may convert.
type converter struct{ left int }

// cut is shown in place of text and nodes beyond the limits.
const cut = "…"

// node converts n. Beyond the limits, it returns a node that shows only "…".
func (t *converter) node(n *layer.Node, depth int) *node {
	if n == nil {
		return nil
	}
	if t.left--; t.left < 0 || depth > maxDepth {
		return &node{Name: cut}
	}
	d := &node{Name: text(n.Name)}
	for _, a := range n.State {
		d.State = append(d.State, attr{text(a.Key), value(a.Value)})
	}
	for i := range n.Children {
		d.Children = append(d.Children, t.node(&n.Children[i], depth+1))
		if t.left < 0 {
			break
		}
	}
	d.Next = t.node(n.Next, depth+1)
	return d
}

// nodes converts the layer nodes of an explanation to the nodes that the page gets as JSON.
func nodes(of []layer.Node) []*node {
	t := converter{left: maxNodes}
	out := make([]*node, 0, len(of))
	for i := range of {
		out = append(out, t.node(&of[i], 0))
	}
	return out
}

// describe calls layers and converts the node that it returns. It returns nil if layers is
// nil. If layers panics, the result is a node with the error.
func describe(layers func() layer.Node) (n *node) {
	if layers == nil {
		return nil
	}
	err := panics.Contain(func() {
		root, t := layers(), converter{left: maxNodes}
		n = t.node(&root, 0)
	})
	if err != nil {
		return &node{Name: "describe", State: []attr{{"error", text(err.Error())}}}
	}
	return n
}

// value converts an attribute's value to one that JSON can represent. Values of unknown types
// become text.
func value(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return v.String()
	case map[string]string:
		pairs := make([]string, 0, len(v))
		for key, val := range v {
			pairs = append(pairs, key+"="+val)
		}
		slices.Sort(pairs)
		return text(strings.Join(pairs, " "))
	case bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return v
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
		return v
	}
	return text(fmt.Sprint(v))
}

// text cuts s to maxText bytes. It replaces characters that are not printable, because they
// could hide other text.
func text(s string) string {
	end := ""
	if len(s) > maxText {
		s, end = strings.ToValidUTF8(s[:maxText], ""), cut
	}
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, s) + end
}
