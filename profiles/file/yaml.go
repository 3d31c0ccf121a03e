package file

import (
	"bytes"
	"errors"
	"io"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxDocuments is more than anybody writes into a file, and few enough that a
// file of separators takes no time.
const maxDocuments = 10_000

var errTooManyDocuments = errors.New("more than 10000 documents: split the file")

// documents returns the roots of the documents that say something.
func documents(data []byte) ([]*yaml.Node, error) {
	var roots []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for range maxDocuments + 1 {
		var n yaml.Node
		if err := decoder.Decode(&n); errors.Is(err, io.EOF) {
			return roots, nil
		} else if err != nil {
			return nil, err
		}
		if root := n.Content[0]; !isNull(root) {
			roots = append(roots, root)
		}
	}
	return nil, errTooManyDocuments
}

// maxBisect is the size above which a mistake in the YAML itself is told with
// the line that the decoder says: decoding a large file twenty times takes long.
const maxBisect = 1 << 20

// syntaxError makes the decoder's error one of the file. The line that the
// decoder says is often that of where the mapping around the mistake began, or
// none. The mistake is on the last line of the shortest beginning of the file
// that fails with the same words.
func syntaxError(name string, data []byte, err error) *Error {
	line, reason := cutLine(strings.TrimPrefix(err.Error(), "yaml: "))
	if len(data) <= maxBisect {
		ends := lineEnds(data)
		line = 1 + sort.Search(len(ends)-1, func(i int) bool {
			_, e := documents(data[:ends[i]])
			return e != nil && e.Error() == err.Error()
		})
	}
	return &Error{File: name, Line: max(line, 1), Reason: reason}
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
