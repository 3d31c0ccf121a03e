package file

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
	"github.com/gotower/gotower/resolve"
)

// Parse reads the content of a file; the package's documentation says what that
// is. It returns the endpoints of each target that exists, in the order of
// their addresses, and none for one that is empty: what static.New takes. The
// name is for the error, which joins an [*Error] for each mistake; mistakes in
// the YAML itself are told alone, because nothing behind them can be read.
func Parse(name string, data []byte) (map[string][]resolve.Endpoint, error) {
	r := reader{mistakes{file: name, lines: 1 + bytes.Count(data, []byte("\n"))}}
	var targets map[string][]resolve.Endpoint
	if root := r.document(yamlfile.FromJSON(data)); root != nil {
		targets = r.destinations(root)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return targets, nil
}

// reader makes of the nodes of a file what they mean.
type reader struct{ mistakes }

// maxDocuments is one more than a file may have.
const maxDocuments = 2

const nothing = `there is nothing in the file; for no targets, write "destinations: {}"`

// document returns the only document of a file, or nil with a mistake noted.
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

// destinations reads the outermost mapping.
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

// target reads what is said of one name.
func (r *reader) target(name, n *yaml.Node) (endpoints []resolve.Endpoint, exists bool) {
	exists = true
	var labels map[string]string
	said := false
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
		said = true
	})
	if !exists && said {
		r.failf(name.Line, "target %q does not exist, and so can have nothing else: take out exists, or the rest", name.Value)
	}
	for i := range endpoints {
		endpoints[i].Labels = over(labels, endpoints[i].Labels)
	}
	slices.SortFunc(endpoints, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return endpoints, exists
}

// checkName finds what cannot be the name of a target.
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
