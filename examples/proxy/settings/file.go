package settings

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// file is the content of a settings file. Keys that find was not called for are unknown.
type file struct {
	name     string
	leaves   []*leaf
	labels   map[string]bool // keys whose value is a mapping of labels
	problems []error
}

// leaf is a value of the file.
type leaf struct {
	key  string     // the variable, as "outbound_connect_timeout"
	path string     // in the file, "outbound.connect_timeout"
	node *yaml.Node // a scalar, a sequence, or a mapping of labels
	read bool
}

func parseFile(name string, content []byte) *file {
	f := &file{name: name, labels: map[string]bool{"tap_labels": true}}
	decoder := yaml.NewDecoder(strings.NewReader(string(content)))
	var doc yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return f
	case err != nil:
		f.problems = append(f.problems, &InvalidError{Where: name, Err: err})
		return f
	}
	switch err := decoder.Decode(new(yaml.Node)); {
	case errors.Is(err, io.EOF):
	case err == nil:
		f.problems = append(f.problems, &InvalidError{Where: name, Err: errors.New("must be one document")})
	default:
		f.problems = append(f.problems, &InvalidError{Where: name, Err: err})
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		f.addProblem(root, "", "must be a mapping")
		return f
	}
	f.walk(root, "", "")
	return f
}

// walk adds the leaves of a mapping.
func (f *file) walk(mapping *yaml.Node, key, path string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		name, value := mapping.Content[i], mapping.Content[i+1]
		if name.Kind != yaml.ScalarNode || name.Value == "" || name.Value != strings.ToLower(name.Value) {
			f.addProblem(name, path, fmt.Sprintf("key %q must be a name in lower case", name.Value))
			continue
		}
		below, at := name.Value, name.Value
		if key != "" {
			below, at = key+"_"+name.Value, path+"."+name.Value
		}
		switch {
		case value.Kind == yaml.AliasNode:
			f.addProblem(value, at, "must not be an alias")
		case value.Kind == yaml.MappingNode && !f.labels[below]:
			f.walk(value, below, at)
		default:
			f.addLeaf(&leaf{key: below, path: at, node: value})
		}
	}
}

func (f *file) addLeaf(l *leaf) {
	same := slices.IndexFunc(f.leaves, func(other *leaf) bool { return other.key == l.key })
	if same >= 0 {
		f.addProblem(l.node, l.path, "is set twice, first on line "+strconv.Itoa(f.leaves[same].node.Line))
		return
	}
	f.leaves = append(f.leaves, l)
}

// find returns the value of a variable and its place.
func (f *file) find(variable string) (text, where string, ok bool) {
	key := strings.ToLower(variable)
	i := slices.IndexFunc(f.leaves, func(l *leaf) bool { return l.key == key && !l.read })
	if i < 0 {
		return "", "", false
	}
	l := f.leaves[i]
	l.read = true
	text, err := textOf(l.node)
	if err != nil {
		f.addProblem(l.node, l.path, err.Error())
		return "", "", false
	}
	return text, f.place(l.node, l.path), true
}

// textOf returns a value in the syntax of a variable.
func textOf(n *yaml.Node) (string, error) {
	switch {
	case isNull(n):
		return "", errors.New("has no value")
	case n.Kind == yaml.ScalarNode:
		return n.Value, nil
	}
	var parts []string
	step := 1
	if n.Kind == yaml.MappingNode {
		step = 2
	}
	for i := 0; i+step <= len(n.Content); i += step {
		for _, part := range n.Content[i : i+step] {
			if part.Kind != yaml.ScalarNode || strings.Contains(part.Value, ",") {
				return "", errors.New("must contain scalars without commas")
			}
		}
		if step == 2 {
			parts = append(parts, n.Content[i].Value+"="+n.Content[i+1].Value)
		} else {
			parts = append(parts, n.Content[i].Value)
		}
	}
	return strings.Join(parts, ","), nil
}

func (f *file) place(n *yaml.Node, path string) string {
	where := f.name + ":" + strconv.Itoa(n.Line)
	if path == "" {
		return where
	}
	return where + ": " + path
}

func (f *file) addProblem(n *yaml.Node, path, reason string) {
	f.problems = append(f.problems, &InvalidError{Where: f.place(n, path), Err: errors.New(reason)})
}

// finish returns the problems of the file. Values that the environment overrides are
// checked, too.
func (f *file) finish() []error {
	sections := map[string]bool{}
	for _, g := range variables(new(Settings)) {
		for i := range g.variables {
			v := &g.variables[i]
			for _, name := range append([]string{v.name}, v.oldNames...) {
				addSections(sections, strings.ToLower(name))
				text, where, ok := f.find(name)
				if !ok {
					continue
				}
				if err := v.set(text); err != nil && !v.lenient {
					f.problems = append(f.problems, v.invalid(where, text, err))
				}
			}
		}
	}
	for _, l := range f.leaves {
		if !l.read && (!isNull(l.node) || !sections[l.key]) { // an empty section is allowed
			f.addProblem(l.node, l.path, "is unknown")
		}
	}
	return f.problems
}

// addSections adds the sections that may contain key: "a" and "a_b" for "a_b_c".
func addSections(to map[string]bool, key string) {
	for i, c := range key {
		if c == '_' {
			to[key[:i]] = true
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
