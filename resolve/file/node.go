package file

import (
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// mapping calls each with every key and its value; what is no mapping, is a key
// twice or cannot be a key, is a mistake. Null is a mapping of nothing.
func (r *reader) mapping(n *yaml.Node, what string, each func(key, value *yaml.Node)) {
	if yamlfile.IsNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.failf(n.Line, "%s: want a mapping, not %s", what, yamlfile.Kind(n))
		return
	}
	first := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name, ok := r.text("the key", key)
		if !ok {
			continue
		}
		if was, twice := first[name]; twice {
			r.failf(key.Line, "%q is given twice, first in line %d: take one out", name, was)
			continue
		}
		first[name] = key.Line
		each(key, value)
	}
}

// text returns a scalar as it is written.
func (r *reader) text(what string, n *yaml.Node) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode || n.Style&yaml.TaggedStyle != 0:
		r.failf(n.Line, "%s: want a single value, not %s", what, yamlfile.Kind(n))
	case yamlfile.IsNull(n):
		r.failf(n.Line, `%s has no value: write one, or "" for an empty one`, what)
	default:
		return n.Value, true
	}
	return "", false
}

// boolean takes true and false only: the other words of YAML 1.1 are not
// booleans any more. What is neither counts as true.
func (r *reader) boolean(what string, n *yaml.Node) bool {
	text, ok := r.text(what, n)
	if ok && text != "true" && text != "false" {
		r.failf(n.Line, "%s %q: write true or false", what, text)
	}
	return text != "false"
}

func (r *reader) labels(n *yaml.Node) map[string]string {
	labels := make(map[string]string, len(n.Content)/2)
	r.mapping(n, "labels", func(key, value *yaml.Node) {
		if key.Value == "" {
			r.failf(key.Line, "a label without a name")
		}
		if text, ok := r.text("label "+strconv.Quote(key.Value), value); ok {
			labels[key.Value] = text
		}
	})
	if len(labels) == 0 {
		return nil
	}
	return labels
}

// syntax notes the decoder's error.
func (r *reader) syntax(data []byte, err error) {
	line, reason := yamlfile.SyntaxError(data, err, func(data []byte) error {
		_, err := yamlfile.Documents(data, maxDocuments)
		return err
	})
	r.failf(line, "%s", reason)
}
