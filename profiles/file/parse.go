package file

import (
	"bytes"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Parse reads the content of a file; the package's documentation says what that
// is. The name is for the error, which joins an [*Error] for each mistake;
// mistakes in the YAML itself are told alone, because nothing behind them can
// be read.
func Parse(name string, data []byte) (*Set, error) {
	text := yamlfile.FromJSON(data)
	roots, err := documents(text)
	if err != nil {
		return nil, join([]*Error{syntaxError(name, text, err)})
	}
	n := &notes{file: name, lines: 1 + bytes.Count(data, []byte("\n"))}
	if len(roots) == 0 {
		n.wrong = append(n.wrong, &Error{File: name, Line: 1, Reason: "there is nothing in the file; for no profile, write {}"})
	}
	s := &Set{}
	for _, root := range roots {
		for _, e := range (value{n, root, ""}).document() {
			if was := s.add(e); was != nil {
				n.wrong = append(n.wrong, e.because("another profile for %s, the first one is in line %d: take one out", e, was.at.Line))
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

// document tells the formats apart.
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
