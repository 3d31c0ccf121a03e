package file

import (
	"bytes"
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Parse parses the content of a file in the formats of the package documentation. The
// error joins an [*Error] for each mistake, with name as the file. A syntax error is
// reported alone, because the rest of the file cannot be read.
func Parse(name string, data []byte) (*Set, error) {
	roots, err := documents(data)
	if err != nil {
		return nil, join([]*Error{syntaxError(name, data, err)})
	}
	n := &notes{file: name, lines: 1 + bytes.Count(data, []byte("\n"))}
	if len(roots) == 0 {
		n.wrong = append(n.wrong, &Error{File: name, Line: 1, Reason: "there is nothing in the file; for no profile, write {}"})
	}
	s := &Set{}
	for _, root := range roots {
		for _, e := range (value{n, root, ""}).document() {
			if was := s.add(e); was != nil {
				n.wrong = append(n.wrong, e.mistake("another profile for %s, the first one is in line %d: take one out", e, was.at.Line))
			}
		}
	}
	if inOrder(n.wrong); len(n.wrong) > 0 {
		return nil, join(n.wrong)
	}
	inOrder(n.warnings)
	s.Warnings = n.warnings
	return s, nil
}

// document reads a document in one of the two formats.
func (v value) document() []*entry {
	if !v.is(yaml.MappingNode, "a mapping") {
		return nil
	}
	_, versioned := v.field("apiVersion")
	_, kind := v.field("kind")
	if versioned || kind {
		return v.resource()
	}
	return v.short()
}

// maxDocuments limits the number of documents in a file, and so the time of parsing it.
const maxDocuments = 10_000

var errTooManyDocuments = errors.New("more than 10000 documents: split the file")

// documents returns the root nodes of the documents that are not empty.
func documents(data []byte) ([]*yaml.Node, error) {
	all, err := yamlfile.Documents(data, maxDocuments+1)
	if err != nil {
		return nil, err
	}
	if len(all) > maxDocuments {
		return nil, errTooManyDocuments
	}
	var roots []*yaml.Node
	for _, root := range all {
		if !yamlfile.IsNull(root) {
			roots = append(roots, root)
		}
	}
	return roots, nil
}

// syntaxError converts an error of the YAML decoder.
func syntaxError(name string, data []byte, err error) *Error {
	line, reason := yamlfile.SyntaxError(data, err, func(data []byte) error {
		_, err := documents(data)
		return err
	})
	return &Error{File: name, Line: line, Reason: reason}
}
