package file

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// maxDocuments limits the time that a file of separators takes.
const maxDocuments = 10_000

var errTooManyDocuments = errors.New("more than 10000 documents: split the file")

// documents returns the roots of the documents that are not empty.
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

// syntaxError returns the decoder's error as one of the file.
func syntaxError(name string, data []byte, err error) *Error {
	line, reason := yamlfile.SyntaxError(data, err, func(data []byte) error {
		_, err := documents(data)
		return err
	})
	return &Error{File: name, Line: line, Reason: reason}
}
