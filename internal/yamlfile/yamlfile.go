// Package yamlfile has functions for parsing YAML and JSON files.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Documents returns the root nodes of the YAML documents in data. The argument limit is the largest
// number of documents that it reads.
func Documents(data []byte, limit int) ([]*yaml.Node, error) {
	var roots []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for len(roots) < limit {
		var n yaml.Node
		if err := decoder.Decode(&n); errors.Is(err, io.EOF) {
			return roots, nil
		} else if err != nil {
			return nil, err
		}
		roots = append(roots, n.Content[0])
	}
	return roots, nil
}

// IsNull reports whether n is null or empty.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Kind returns a description of the kind of n, for the error message of a node with an
// unexpected kind.
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

// maxBisect is the largest size of data, in bytes, for which [SyntaxError] searches for the
// line. The size is limited because the search decodes data about twenty times.
const maxBisect = 1 << 20

// SyntaxError returns the line and the reason of err, the error that decode returned for data. The
// reason is the text of err without the line. The line in this text is often wrong or missing.
// Therefore SyntaxError searches for the shortest prefix of data for which decode returns the same
// error. It returns the number of the last line of this prefix. If data is larger than maxBisect,
// it does not search, and returns the line in the text.
func SyntaxError(data []byte, err error, decode func([]byte) error) (line int, reason string) {
	line, reason = CutLine(strings.TrimPrefix(err.Error(), "yaml: "))
	if len(data) <= maxBisect {
		ends := lineEnds(data)
		line = 1 + sort.Search(len(ends)-1, func(i int) bool {
			e := decode(data[:ends[i]])
			return e != nil && e.Error() == err.Error()
		})
	}
	return max(line, 1), reason
}

// CutLine removes a prefix such as "line 7: " from message and returns the number of the
// line and the rest. Without such a prefix it returns 0 and message.
func CutLine(message string) (line int, rest string) {
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
