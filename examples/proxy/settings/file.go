package settings

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// file is a parsed settings file. Its leaves are the values with their keys. Each call of
// [file.find] marks the leaf that it returns. After all variables have been looked up, the
// unmarked leaves are errors, because their keys are not names of variables.
type file struct {
	name     string
	leaves   []*leaf
	labels   map[string]bool // keys with a mapping of labels as value
	problems []error
}

// leaf is a single value of a settings file, with its key.
type leaf struct {
	key  string     // the key in one piece, such as "outbound_connect_timeout"
	path string     // the key as written in the file, such as "outbound.connect_timeout"
	node *yaml.Node // a scalar, a sequence, or a mapping of labels
	read bool       // find has returned the value
}

// parseFile parses the content of a settings file. Its errors are in the field problems.
func parseFile(name string, content []byte) *file {
	f := &file{name: name, labels: map[string]bool{"tap_labels": true}}
	roots, err := yamlfile.Documents(content, 2)
	switch {
	case err != nil:
		f.problems = append(f.problems, &InvalidError{Where: name, Err: err})
		return f
	case len(roots) == 0:
		return f
	case len(roots) > 1:
		f.problems = append(f.problems, &InvalidError{Where: name, Err: errors.New("must be one document")})
	}
	root := roots[0]
	if root.Kind != yaml.MappingNode {
		f.addProblem(root, "", "must be a mapping")
		return f
	}
	f.walk(root, "", "")
	return f
}

// walk adds each value in mapping as a leaf, and also the values of nested mappings. key
// is the key of mapping in the form a_b, and path is the same key in the form a.b. Both
// are empty if mapping is the whole file.
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

// addLeaf adds l, or an error if there is a leaf with the same key.
func (f *file) addLeaf(l *leaf) {
	same := slices.IndexFunc(f.leaves, func(other *leaf) bool { return other.key == l.key })
	if same >= 0 {
		f.addProblem(l.node, l.path, "is set twice, first on line "+strconv.Itoa(f.leaves[same].node.Line))
		return
	}
	f.leaves = append(f.leaves, l)
}

// find returns the text of the given variable, a name without a prefix. The result where is
// the file, line and key of the value. The result ok is false if the file does not set the
// variable. It is also false if an earlier call has found the variable, so that
// [file.finish] checks only the values that were not read before. For a value of an invalid
// form, find adds a problem, and ok is false.
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

// textOf returns the value n in the syntax of an environment variable. A sequence becomes a
// list with commas, and a mapping becomes key=value,key=value.
func textOf(n *yaml.Node) (string, error) {
	switch {
	case yamlfile.IsNull(n):
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

// place returns the place of n for an error message: the name of the file, the line and the
// key.
func (f *file) place(n *yaml.Node, path string) string {
	where := f.name + ":" + strconv.Itoa(n.Line)
	if path == "" {
		return where
	}
	return where + ": " + path
}

// addProblem adds an error with the given reason about the value n. path is the key of n as
// in the file.
func (f *file) addProblem(n *yaml.Node, path, reason string) {
	f.problems = append(f.problems, &InvalidError{Where: f.place(n, path), Err: errors.New(reason)})
}

// finish returns all errors of the file. They include invalid values that an environment
// variable overrides, and unknown keys.
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
		if !l.read && (!yamlfile.IsNull(l.node) || !sections[l.key]) { // an empty section is allowed
			f.addProblem(l.node, l.path, "is unknown")
		}
	}
	return f.problems
}

// addSections adds each beginning of key that ends before an underscore to sections, such
// as "a" and "a_b" for "a_b_c". A settings file may contain these as the keys of mappings.
func addSections(sections map[string]bool, key string) {
	for i, c := range key {
		if c == '_' {
			sections[key[:i]] = true
		}
	}
}
