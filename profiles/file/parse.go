package file

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Parse parses the content of a file in the formats that the package documentation describes. name
// is the name of the file in errors. The error joins an [*Error] for each mistake. A syntax error
// is reported alone, because the rest of the file cannot be read.
func Parse(name string, data []byte) (*Set, error) {
	f := yamlfile.NewFile(name, data)
	roots, err := documents(name, data)
	// A syntax error, or an empty file, is the only mistake that is reported.
	switch {
	case err != nil:
		return nil, errors.Join(err)
	case len(roots) == 0:
		f.Mistakes = append(f.Mistakes, &Error{File: name, Line: 1, Reason: "there is nothing in the file; for no profile, write {}"})
	}
	s := &Set{}
	// Each document may hold several profiles. Mistakes are collected in f.
	for _, root := range roots {
		for _, e := range readDocument(value{File: f, Node: root}) {
			if was := s.add(e); was != nil {
				mistake := e.mistake("another profile for %s, the first one is in line %d: take one out", e, was.at.Line)
				f.Mistakes = append(f.Mistakes, mistake)
			}
		}
	}
	// With any mistake, nothing of the file is used.
	if err := yamlfile.Join(f.Mistakes); err != nil {
		return nil, err
	}
	yamlfile.Sort(f.Warnings)
	s.Warnings = f.Warnings
	return s, nil
}

// readDocument reads a document. A document with a field apiVersion or kind is a Kubernetes
// resource. Any other document is in the short form. The result has an entry for each profile in
// the document.
func readDocument(v value) []*entry {
	if !v.Is(yaml.MappingNode, "a mapping") {
		return nil
	}
	_, versioned := v.Field("apiVersion")
	_, kind := v.Field("kind")
	// A Kubernetes resource has these two fields, and the short form of this package has neither.
	if versioned || kind {
		return readResource(v)
	}
	return readShort(v)
}

// maxDocuments is the largest number of documents in a file. It limits the time of parsing
// a file.
const maxDocuments = 10_000

// documents returns the documents of a file, without empty ones.
func documents(name string, data []byte) ([]*yaml.Node, error) {
	// One more than allowed is read, to notice that there are too many.
	all, err := yamlfile.Documents(name, data, maxDocuments+1)
	if err != nil {
		return nil, err
	}
	if len(all) > maxDocuments {
		return nil, &Error{File: name, Line: all[maxDocuments].Line, Reason: "more than 10000 documents: split the file"}
	}
	var roots []*yaml.Node
	for _, root := range all {
		if !yamlfile.IsNull(root) {
			roots = append(roots, root)
		}
	}
	return roots, nil
}
