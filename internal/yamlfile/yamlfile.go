// Package yamlfile helps to parse YAML and JSON files.
package yamlfile

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Documents parses data, the content of the named file, and returns the root of each YAML
// document, up to limit. The error is an [*Error] that tells the line.
func Documents(name string, data []byte, limit int) ([]*yaml.Node, error) {
	roots, err := documents(data, limit)
	if err != nil {
		line, reason := syntaxError(data, err, limit)
		return nil, &Error{File: name, Line: line, Reason: "not YAML: " + reason}
	}
	return roots, nil
}

// documents returns the roots of the first limit documents in data.
func documents(data []byte, limit int) ([]*yaml.Node, error) {
	var roots []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for len(roots) < limit {
		var n yaml.Node
		if err := decoder.Decode(&n); errors.Is(err, io.EOF) {
			return roots, nil
		} else if err != nil {
			return nil, err
		}
		// n is the document; its only child is the root.
		roots = append(roots, n.Content[0])
	}
	return roots, nil
}

// IsNull reports whether n is null or empty.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Kind describes n, for a message that it is of the wrong kind.
func Kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.AliasNode:
		return fmt.Sprintf("an alias (write out the value of *%s)", n.Value)
	case n.Style&yaml.TaggedStyle != 0:
		return "something with the tag " + n.Tag
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// maxBisect is how large data may be, in bytes, for [syntaxError] to search for the line, which
// means decoding it about twenty times.
const maxBisect = 1 << 20

// syntaxError returns the line and the reason for err, which documents returned for data. The
// line in err's text is often wrong or missing, so syntaxError looks for the shortest prefix that
// causes the same error, and takes its last line. If data is larger than maxBisect, it trusts the
// text.
func syntaxError(data []byte, err error, limit int) (line int, reason string) {
	line, reason = cutLine(strings.TrimPrefix(err.Error(), "yaml: "))
	if len(data) <= maxBisect {
		ends := lineEnds(data)
		line = 1 + sort.Search(len(ends)-1, func(i int) bool {
			_, e := documents(data[:ends[i]], limit)
			return e != nil && e.Error() == err.Error()
		})
	}
	return max(line, 1), reason
}

// cutLine removes a prefix such as "line 7: " from message and returns the number of the
// line and the rest. Without such a prefix it returns 0 and message.
func cutLine(message string) (line int, rest string) {
	head, rest, found := strings.Cut(message, ": ")
	number, numbered := strings.CutPrefix(head, "line ")
	if line, err := strconv.Atoi(number); found && numbered && err == nil {
		return line, rest
	}
	return 0, message
}

// lineEnds returns the offset after each line of data, so that element i is the end of line i+1.
func lineEnds(data []byte) []int {
	var ends []int
	for i, c := range data {
		if c == '\n' || i == len(data)-1 {
			ends = append(ends, i+1)
		}
	}
	return ends
}

// Tree returns value as a node without positions. value may consist of maps, slices, pointers,
// strings, numbers, booleans, and values that marshal to text, such as a [netip.Prefix].
func Tree(value any) *yaml.Node {
	if text, ok := value.(encoding.TextMarshaler); ok {
		if b, err := text.MarshalText(); err == nil {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: string(b)}
		}
	}
	v := reflect.ValueOf(value)
	switch v.Kind() { //nolint:exhaustive // scalars are the default
	case reflect.Invalid:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	case reflect.Pointer:
		if v.IsNil() {
			return Tree(nil)
		}
		return Tree(v.Elem().Interface())
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			n.Content = append(n.Content, Tree(key.String()), Tree(v.MapIndex(key).Interface()))
		}
		return n
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			n.Content = append(n.Content, Tree(v.Index(i).Interface()))
		}
		return n
	case reflect.Float64:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: strconv.FormatFloat(v.Float(), 'f', -1, 64)}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: fmt.Sprint(value)}
}
