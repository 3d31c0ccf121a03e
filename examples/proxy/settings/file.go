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

// file is a parsed settings file. Its leaves are the values with their keys. [file.find] marks each
// leaf that it returns, so that the unmarked ones can be reported after all variables have been
// looked up: their keys are not names of variables.
type file struct {
	name     string
	leaves   []*leaf
	labels   map[string]bool // keys whose value is a mapping of labels
	problems []error
}

// leaf is a single value in a settings file, with its key.
type leaf struct {
	key  string     // in one piece, such as "outbound_connect_timeout"
	path string     // as written in the file, such as "outbound.connect_timeout"
	node *yaml.Node // a scalar, a sequence, or a mapping of labels
	read bool       // find has returned the value
}

// parseFile parses a settings file. Errors are stored in problems.
func parseFile(name string, content []byte) *file {
	// The value of a label's key may contain anything, so this mapping is one value instead of nested keys.
	f := &file{name: name, labels: map[string]bool{"tap_labels": true}}
	// The number limits the documents that are read: a second one is enough for an error.
	roots, err := yamlfile.Documents(name, content, 2)
	var syntax *yamlfile.Error
	switch {
	case errors.As(err, &syntax):
		f.problems = append(f.problems, &InvalidError{Where: fmt.Sprintf("%s:%d", name, syntax.Line), Err: errors.New(syntax.Reason)})
		// Without a tree, there is nothing to check.
		return f
	case len(roots) == 0:
		// An empty file sets nothing.
		return f
	case len(roots) > 1:
		f.addProblem(roots[1], "", "is a second document: the file must be one document")
	}
	root := roots[0]
	if root.Kind != yaml.MappingNode {
		f.addProblem(root, "", "must be a mapping")
		return f
	}
	f.walk(root, "", "")
	return f
}

// walk adds each value in mapping and in nested mappings as a leaf. key is mapping's own key in the
// form a_b, and path is the same in the form a.b. Both are empty for the whole file.
func (f *file) walk(mapping *yaml.Node, key, path string) {
	// In YAML's tree, a mapping's content alternates between keys and values.
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		name := mapping.Content[i]
		value := mapping.Content[i+1]
		if name.Kind != yaml.ScalarNode || name.Value == "" || name.Value != strings.ToLower(name.Value) {
			f.addProblem(name, path, fmt.Sprintf("key %q must be a name in lower case", name.Value))
			continue
		}
		childKey := name.Value
		childPath := name.Value
		if key != "" {
			childKey = key + "_" + name.Value
			childPath = path + "." + name.Value
		}
		// An alias could expand a small file to a huge one. A nested mapping only continues the key. All else is a
		// value.
		switch {
		case value.Kind == yaml.AliasNode:
			f.addProblem(value, childPath, "must not be an alias")
		case value.Kind == yaml.MappingNode && !f.labels[childKey]:
			f.walk(value, childKey, childPath)
		default:
			f.addLeaf(&leaf{key: childKey, path: childPath, node: value})
		}
	}
}

// addLeaf adds l, or an error if its key already occurred.
func (f *file) addLeaf(l *leaf) {
	index := slices.IndexFunc(f.leaves, func(candidate *leaf) bool { return candidate.key == l.key })
	if index >= 0 {
		f.addProblem(l.node, l.path, "is set twice, first on line "+strconv.Itoa(f.leaves[index].node.Line))
		return
	}
	f.leaves = append(f.leaves, l)
}

// find returns a variable's text, and the file, line and key as its position. The variable is a
// name without a prefix. ok is false if the file does not set it, or if an earlier call has already
// returned it, so that [file.finish] checks only the remaining values. If the value's form is
// invalid, find adds a problem and ok is false.
func (f *file) find(variable string) (text, position string, ok bool) {
	key := strings.ToLower(variable)
	// A leaf that is already read is skipped, see above.
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

// textOf returns n in the syntax of an environment variable. A sequence becomes a comma-separated
// list, and a mapping becomes key=value,key=value.
func textOf(n *yaml.Node) (string, error) {
	switch {
	// "key:" without a value is probably a mistake. An empty text must be written as "".
	case yamlfile.IsNull(n):
		return "", errors.New("has no value")
	case n.Kind == yaml.ScalarNode:
		return n.Value, nil
	}
	// The content of a sequence is its items. That of a mapping alternates between keys and values.
	var parts []string
	step := 1
	if n.Kind == yaml.MappingNode {
		step = 2
	}
	for i := 0; i+step <= len(n.Content); i += step {
		for _, child := range n.Content[i : i+step] {
			// A comma in an item would become a separator in the variable's syntax.
			if child.Kind != yaml.ScalarNode || strings.Contains(child.Value, ",") {
				return "", errors.New("must contain single values without commas")
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

// place returns where n is, for an error message: file, line, column and key.
func (f *file) place(n *yaml.Node, path string) string {
	position := fmt.Sprintf("%s:%d:%d", f.name, n.Line, n.Column)
	if path == "" {
		return position
	}
	return position + ": " + path
}

// addProblem adds an error about the value n, whose key in the file is path.
func (f *file) addProblem(n *yaml.Node, path, reason string) {
	f.problems = append(f.problems, &InvalidError{Where: f.place(n, path), Err: errors.New(reason)})
}

// finish returns all errors in the file, including unknown keys and invalid values that an
// environment variable overrides.
func (f *file) finish() []error {
	// sections collects all keys that may be a mapping, to tell them from unknown keys below.
	sections := map[string]bool{}
	// The values are parsed again into unused settings: the environment may have overridden them, so that no one has
	// checked them yet.
	for _, g := range variables(new(Settings)) {
		for i := range g.variables {
			v := &g.variables[i]
			for _, name := range append([]string{v.name}, v.oldNames...) {
				addSections(sections, strings.ToLower(name))
				text, position, ok := f.find(name)
				if !ok {
					continue
				}
				if err := v.set(text); err != nil && !v.lenient {
					f.problems = append(f.problems, v.invalid(position, text, err))
				}
			}
		}
	}
	for _, l := range f.leaves {
		switch {
		case l.read, yamlfile.IsNull(l.node) && sections[l.key]: // an empty section is allowed
		case sections[l.key]:
			f.addProblem(l.node, l.path, "must be a mapping of settings")
		default:
			f.addProblem(l.node, l.path, "is unknown: --help lists the settings")
		}
	}
	return f.problems
}

// addSections adds each beginning of key that ends before an underscore, such as "a" and "a_b" for
// "a_b_c". In a settings file, these may be keys of mappings.
func addSections(sections map[string]bool, key string) {
	for i, c := range key {
		if c == '_' {
			sections[key[:i]] = true
		}
	}
}
