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

// file is a file of settings. What was not asked for is unknown.
type file struct {
	name     string
	leaves   []*leaf
	labels   map[string]bool // keys whose value is a mapping of labels
	problems []error
}

// leaf is a value of the file.
type leaf struct {
	key  string     // the variable, as "outbound_connect_timeout"
	path string     // as it is written, "outbound.connect_timeout"
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
		f.wrong(root, "", "must be a mapping")
		return f
	}
	f.walk(root, "", "")
	return f
}

// walk finds the leaves below a mapping.
func (f *file) walk(mapping *yaml.Node, key, path string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		name, value := mapping.Content[i], mapping.Content[i+1]
		if name.Kind != yaml.ScalarNode || name.Value == "" || name.Value != strings.ToLower(name.Value) {
			f.wrong(name, path, fmt.Sprintf("key %q must be a name in lower case", name.Value))
			continue
		}
		below, at := name.Value, name.Value
		if key != "" {
			below, at = key+"_"+name.Value, path+"."+name.Value
		}
		switch {
		case value.Kind == yaml.AliasNode:
			f.wrong(value, at, "must not be an alias")
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
		f.wrong(l.node, l.path, "says again what line "+strconv.Itoa(f.leaves[same].node.Line)+" says")
		return
	}
	f.leaves = append(f.leaves, l)
}

// find returns the value of a variable, and where it stands.
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
		f.wrong(l.node, l.path, err.Error())
		return "", "", false
	}
	return text, f.place(l.node, l.path), true
}

// textOf writes a value as a variable would have it.
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
				return "", errors.New("must hold single values without commas")
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

func (f *file) wrong(n *yaml.Node, path, says string) {
	f.problems = append(f.problems, &InvalidError{Where: f.place(n, path), Err: errors.New(says)})
}

// finish returns what is wrong with the file itself, and with what it says that
// the environment took precedence over.
func (f *file) finish() []error {
	sections := map[string]bool{}
	for _, g := range variables(new(Settings)) {
		for i := range g.variables {
			v := &g.variables[i]
			for _, name := range append([]string{v.name}, v.older...) {
				addSections(sections, strings.ToLower(name))
				text, where, ok := f.find(name)
				if !ok {
					continue
				}
				if err := v.set(text); err != nil && !v.mild {
					f.problems = append(f.problems, v.invalid(where, text, err))
				}
			}
		}
	}
	for _, l := range f.leaves {
		if !l.read && (!isNull(l.node) || !sections[l.key]) { // all that it had may be comments now
			f.wrong(l.node, l.path, "is not known")
		}
	}
	return f.problems
}

// addSections adds those that key may stand in: "a" and "a_b" for "a_b_c".
func addSections(to map[string]bool, key string) {
	for i, c := range key {
		if c == '_' {
			to[key[:i]] = true
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
