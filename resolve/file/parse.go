package file

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/resolve"
)

// Parse parses the content of a file in the format that the package documentation describes. It
// returns the endpoints of each target that exists, sorted by address, in the form that
// static.New takes. The error joins an [*Error] for each mistake, with name as the file. A
// syntax error is reported alone, because the rest cannot be parsed.
func Parse(name string, data []byte) (map[string][]resolve.Endpoint, error) {
	r := reader{mistakes{file: name, lines: 1 + bytes.Count(data, []byte("\n"))}}
	var targets map[string][]resolve.Endpoint
	if root := r.document(data); root != nil {
		targets = r.destinations(root)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return targets, nil
}

// reader converts the nodes of a file.
type reader struct{ mistakes }

// maxDocuments is the number of documents that are parsed. The second one is reported
// as a mistake.
const maxDocuments = 2

const nothing = `there is nothing in the file; for no targets, write "destinations: {}"`

// document returns the only document of a file. It returns nil after a mistake.
func (r *reader) document(data []byte) *yaml.Node {
	documents, err := yamlfile.Documents(data, maxDocuments)
	switch {
	case err != nil:
		r.syntax(data, err)
		return nil
	case len(documents) > 1:
		r.failf(documents[1].Line, "another document: a file is one")
		return nil
	case len(documents) == 0 || yamlfile.IsNull(documents[0]):
		r.failf(1, nothing)
		return nil
	}
	return documents[0]
}

// destinations parses the outermost mapping.
func (r *reader) destinations(root *yaml.Node) map[string][]resolve.Endpoint {
	targets := make(map[string][]resolve.Endpoint)
	given := false
	r.mapping(root, "the file", func(key, value *yaml.Node) {
		if key.Value != "destinations" {
			r.failf(key.Line, "unknown field %q: there is destinations", key.Value)
			return
		}
		given = !yamlfile.IsNull(value)
		r.mapping(value, "destinations", func(key, value *yaml.Node) {
			if err := checkName(key.Value); err != nil {
				r.failf(key.Line, "target %q: %v", key.Value, err)
			}
			if endpoints, exists := r.target(key, value); exists {
				targets[key.Value] = endpoints
			}
		})
	})
	if !given && len(r.found) == 0 {
		r.failf(1, nothing)
	}
	return targets
}

// target parses the value of one name.
func (r *reader) target(name, n *yaml.Node) (endpoints []resolve.Endpoint, exists bool) {
	exists = true
	var labels map[string]string
	hasFields := false
	r.mapping(n, "a target", func(key, value *yaml.Node) {
		switch key.Value {
		case "exists":
			exists = r.boolean(key.Value, value)
			return
		case "labels":
			labels = r.labels(value)
		case "endpoints":
			endpoints = r.endpoints(value)
		default:
			r.failf(key.Line, "unknown field %q: a target has exists, labels, endpoints", key.Value)
		}
		hasFields = true
	})
	if !exists && hasFields {
		r.failf(name.Line, "target %q does not exist, and so can have nothing else: take out exists, or the rest", name.Value)
	}
	for i := range endpoints {
		endpoints[i].Labels = over(labels, endpoints[i].Labels)
	}
	slices.SortFunc(endpoints, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return endpoints, exists
}

// checkName returns an error if name cannot be the name of a target.
func checkName(name string) error {
	outside := func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }
	switch {
	case name == "":
		return errors.New("the name is empty")
	case !utf8.ValidString(name):
		return errors.New("the name is not UTF-8")
	case strings.ContainsFunc(name, outside):
		return errors.New("white space or a control character in the name")
	}
	return nil
}

// mapping calls each with every key and its value. Another kind of node, a duplicate
// key and a key that is not a scalar are mistakes. Null is an empty mapping.
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

// text returns the text of a scalar. It returns false after a mistake.
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

// boolean accepts only true and false, as YAML 1.2 does. It returns true after a mistake.
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

// syntax adds the error of the YAML decoder as a mistake.
func (r *reader) syntax(data []byte, err error) {
	line, reason := yamlfile.SyntaxError(data, err, func(data []byte) error {
		_, err := yamlfile.Documents(data, maxDocuments)
		return err
	})
	r.failf(line, "%s", reason)
}
