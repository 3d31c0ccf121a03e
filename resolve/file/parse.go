package file

import (
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/resolve"
)

type (
	value  = yamlfile.Value
	fields = yamlfile.Fields
)

// Error is one mistake in a file. Its fields are File, Line, Column, Field, Value and Reason. The
// errors from [Parse] and from a stream join one Error for each mistake, in line order.
type Error = yamlfile.Error

// Parse parses a file in the format that the package documentation describes. It returns the
// endpoints for each target that exists, sorted by address, as static.New takes them. name is the
// file name in errors. The error joins an [*Error] for each mistake. A syntax error is reported
// alone, because the rest cannot be parsed.
func Parse(name string, data []byte) (map[string][]resolve.Endpoint, error) {
	f := yamlfile.NewFile(name, data)
	targets := make(map[string][]resolve.Endpoint)
	if root := document(f, data); root != nil {
		v := value{File: f, Node: root}
		v.Read(fields{"destinations": func(v value) { readTargets(v, targets) }})
		// The field is missing or null. Other mistakes come first, because they may be its cause.
		if item, _ := v.Field("destinations"); len(f.Mistakes) == 0 && (item.IsNull() || len(root.Content) == 0) {
			f.Mistakes = append(f.Mistakes, &Error{File: name, Line: 1, Reason: nothing})
		}
	}
	if err := yamlfile.Join(f.Mistakes); err != nil {
		return nil, err
	}
	return targets, nil
}

// maxDocuments is how many YAML documents are parsed. A file must consist of one document. A
// second one is parsed in order to report it as a mistake.
const maxDocuments = 2

const nothing = `there is nothing in the file; for no targets, write "destinations: {}"`

// document returns the only YAML document of a file. It returns nil after a mistake, which
// it reports to f.
func document(f *yamlfile.File, data []byte) *yaml.Node {
	// errors.As below replaces this default by the syntax error, if there is one.
	documents, err := yamlfile.Documents(f.Name, data, maxDocuments)
	mistake := &Error{File: f.Name, Line: 1, Reason: nothing}
	switch {
	// A syntax error, or a wrong encoding: errors.As has stored it in mistake.
	case errors.As(err, &mistake):
	// The second document's position is what the user must look at.
	case len(documents) > 1:
		mistake = value{File: f, Node: documents[1]}.Note("another document: a file is one")
	case len(documents) == 1 && !yamlfile.IsNull(documents[0]):
		return documents[0]
	}
	f.Mistakes = append(f.Mistakes, mistake)
	return nil
}

// readTargets parses v, the value of the field destinations, into targets. Targets that do not exist
// are left out.
func readTargets(v value, targets map[string][]resolve.Endpoint) {
	v.Each(func(key, item value) {
		if err := checkName(key.Node.Value); err != nil {
			key.Failf("%v", err)
		}
		// Read even if the name is a mistake, so that the mistakes inside are reported with it.
		if endpoints, exists := readTarget(item); exists {
			targets[key.Node.Value] = endpoints
		}
	})
}

// readTarget parses a target. exists is false if the target does not exist.
func readTarget(v value) (endpoints []resolve.Endpoint, exists bool) {
	// A target that is in the file exists unless its field exists is false.
	exists = true
	var labels map[string]string
	v.Read(fields{
		"exists":    yamlfile.Boolean(&exists),
		"labels":    yamlfile.Labels(&labels),
		"endpoints": func(v value) { endpoints = readEndpoints(v) },
	})
	// A node's Content holds each field's name and value, so that more than 2 means a second field.
	if !exists && len(v.Node.Content) > 2 {
		v.Failf("the target does not exist, and so can have nothing else: take out exists, or the rest")
	}
	for i := range endpoints {
		endpoints[i].Labels = union(labels, endpoints[i].Labels)
	}
	// Parse promises this order.
	slices.SortFunc(endpoints, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return endpoints, exists
}

// checkName returns an error if name cannot be a target, so that a mistake such as a trailing space
// does not create a target that nobody finds.
func checkName(name string) error {
	outside := func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }
	// UTF-8 before the characters, which are not defined in other texts.
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
