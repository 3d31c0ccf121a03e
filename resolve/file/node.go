package file

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// mapping calls each with every key and its value; what is no mapping, is a key
// twice or cannot be a key, is a mistake. Null is a mapping of nothing.
func (r *reader) mapping(n *yaml.Node, what string, each func(key, value *yaml.Node)) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.failf(n.Line, "%s: want a mapping, not %s", what, kindOf(n))
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
		r.failf(n.Line, "%s: want a single value, not %s", what, kindOf(n))
	case isNull(n):
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

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kindOf says what a node is that should be something else.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.AliasNode:
		return fmt.Sprintf("an alias (write out what *%s stands for)", n.Value)
	case n.Style&yaml.TaggedStyle != 0:
		return "something with the tag " + n.Tag
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// maxBisect is the size above which a mistake in the YAML itself is told with
// the line that the decoder says: decoding a large file twenty times takes long.
const maxBisect = 1 << 20

// syntax makes the decoder's error one of the file. The line that the decoder
// says is often that of where the mapping around the mistake began, or none.
// The mistake is on the last line of the shortest beginning of the file that
// fails with the same words.
func (r *reader) syntax(data []byte, err error) {
	line, reason := cutLine(strings.TrimPrefix(err.Error(), "yaml: "))
	if len(data) <= maxBisect {
		ends := lineEnds(data)
		line = 1 + sort.Search(len(ends)-1, func(i int) bool {
			_, e := decode(data[:ends[i]])
			return e != nil && e.Error() == err.Error()
		})
	}
	r.failf(line, "%s", reason)
}

// cutLine takes the "line 7: " off a message; without one it returns 0.
func cutLine(message string) (line int, rest string) {
	head, rest, found := strings.Cut(message, ": ")
	number, numbered := strings.CutPrefix(head, "line ")
	if line, err := strconv.Atoi(number); found && numbered && err == nil {
		return line, rest
	}
	return 0, message
}

func lineEnds(data []byte) []int {
	var ends []int
	for i, c := range data {
		if c == '\n' || i == len(data)-1 {
			ends = append(ends, i+1)
		}
	}
	return ends
}
