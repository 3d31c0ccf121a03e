package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// source is a configuration while it is being read: its file and included files, with the
// mistakes found so far. The documents are joined into one, so line numbers count through all
// files, one after the other; [source.position] converts them back.
type source struct {
	*yamlfile.File
	dir      string // the file's folder; "" for a generated configuration
	read     func(path string) ([]byte, error)
	env      func(name string) (string, bool) // nil if the text cannot contain variables
	lint     bool                             // whether to look for warnings
	contents []Content                        // every file that was read
	parts    []part
}

// part is one of a source's files.
type part struct {
	name   string
	offset int // number of lines in earlier parts
}

// Content is a file, or the list of files that match a pattern, as it was read for a
// configuration.
type Content struct {
	Path string
	Data []byte

	pattern bool
}

// Read reads the file, or lists the files that match the pattern, again. The gateway compares the result
// with Data to notice changes.
func (c *Content) Read() ([]byte, error) {
	if c.pattern {
		return []byte(strings.Join(matches(c.Path), "\n")), nil
	}
	return os.ReadFile(c.Path)
}

// matches returns the sorted paths of the files that match a pattern, as in package filepath.
func matches(pattern string) []string {
	paths, _ := filepath.Glob(pattern) // the pattern was checked
	return paths
}

// Load reads the file at path, or standard input if path is "-", and parses it. The error joins
// an [*Error] for each mistake. The Config is then not valid, but if it is not nil, its Contents
// still say which files to watch.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Loader returns a function that loads the configuration again each time. It reads standard input
// only once.
func Loader(path string) (func() (*Config, error), error) {
	// Standard input cannot be read again, so its content is kept.
	if path != "-" {
		return func() (*Config, error) { return Load(path) }, nil
	}
	data, err := read(path)
	return func() (*Config, error) { return Parse(path, data) }, err
}

// Check is like [Load], but also returns warnings about routes that no request reaches.
func Check(path string) (warnings []*Error, err error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	s := newSource(path)
	s.lint = true
	_, err = s.parse(path, data)
	// Warnings are only found if there are no mistakes.
	return s.located(s.Warnings), err
}

// Parse parses data, which was read from the file at path, or from standard input if path is "-".
// Relative paths in data start at that file's folder.
func Parse(path string, data []byte) (*Config, error) { return newSource(path).parse(path, data) }

// read returns the content of the file at path, or of standard input if path is "-".
func read(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(path)
}

// newSource returns a source for the file at path, which may use environment variables and refer to other files.
func newSource(path string) *source {
	s := &source{dir: filepath.Dir(path), env: os.LookupEnv}
	// Each file is recorded, even if it does not exist, so that the gateway notices when it appears.
	s.read = func(name string) ([]byte, error) {
		data, err := os.ReadFile(name)
		s.contents = append(s.contents, Content{Path: name, Data: data})
		return data, err
	}
	return s
}

// Generated returns a configuration with the given fields, for use by programs. It reads neither
// files nor variables: files maps the paths in fields to the files' contents. Mistakes have paths
// of fields, but no positions.
func Generated(fields map[string]any, files map[string][]byte) (*Config, error) {
	s := &source{read: func(name string) ([]byte, error) {
		data, ok := files[name]
		if !ok {
			return nil, os.ErrNotExist
		}
		return data, nil
	}}
	v := yamlfile.Program(fields)
	// Mistakes in the fields are collected in this file.
	s.File = v.File
	return s.config(v.Node)
}

// parse parses data and all files that it includes, and decodes the result.
func (s *source) parse(path string, data []byte) (*Config, error) {
	if path == "-" {
		path = "stdin"
	} else if s.dir != "" { // not standard input, which cannot be watched for changes
		s.contents = append(s.contents, Content{Path: path, Data: data})
	}
	// The file's positions count through all parts, and position converts them back.
	s.File = &yamlfile.File{Origin: s.position}
	root, err := s.document(path, data)
	if err == nil {
		err = s.include(node{s, root, ""})
	}
	if err != nil {
		// The gateway watches these files until the mistake is corrected.
		return &Config{contents: s.contents}, err
	}
	return s.config(root)
}

// config decodes the document root.
func (s *source) config(root *yaml.Node) (*Config, error) {
	s.Paths = make(map[*yaml.Node]string)
	// Defaults are copied to the items first, so that each item is checked with all of its fields.
	s.applyDefaults(root)
	var c Config
	s.decoder().Decode(node{s, root, ""}.value(), &c)
	c.contents = s.contents
	mistakes := s.located(s.Mistakes)
	errs := make([]error, 0, len(mistakes))
	for _, e := range mistakes {
		errs = append(errs, e)
	}
	if len(errs) > 0 {
		return &Config{contents: s.contents}, errors.Join(errs...)
	}
	c.setVersions()
	return &c, nil
}

// document parses data, the content of the named file, and returns its only document. The line
// numbers of its nodes count through all files of s, so that [source.position] finds a node's file.
func (s *source) document(name string, data []byte) (*yaml.Node, error) {
	// A second document is enough for an error.
	roots, err := yamlfile.Documents(name, data, 2)
	if err != nil {
		return nil, err
	}
	if len(roots) != 1 {
		number := "several"
		if len(roots) == 0 {
			number = "none"
		}
		return nil, &Error{File: name, Line: 1, Reason: "want one document, not " + number}
	}
	offset := s.Append(data)
	s.parts = append(s.parts, part{name, offset})
	if offset > 0 {
		addLines(roots[0], offset)
	}
	return roots[0], nil
}

// addLines adds n to the line numbers of root and everything below it.
func addLines(root *yaml.Node, n int) {
	root.Line += n
	for _, child := range root.Content {
		addLines(child, n)
	}
}

// position converts a line number in s to a file and a line number in it.
func (s *source) position(line int) (name string, number int) {
	i := len(s.parts) - 1
	// The last part that begins before line contains it.
	for i > 0 && s.parts[i].offset >= line {
		i--
	}
	return s.parts[i].name, line - s.parts[i].offset
}

// located sorts list and replaces positions in s by positions in files. A mistake in defaults is
// reported once, although every item that uses the field has it.
func (s *source) located(list []*Error) []*Error {
	yamlfile.Sort(list)
	// Defaults have been copied to many items, and each copy reports the same mistake.
	list = slices.CompactFunc(list, func(a, b *Error) bool { return *a == *b })
	for _, e := range list {
		if e.Line > 0 { // generated configurations have no lines
			e.File, e.Line = s.position(e.Line)
		}
	}
	return list
}

// include adds the documents that root's field include names. Their lists are appended to root's.
// Included files may include others, and each file is included only once.
func (s *source) include(root node) error {
	// The list grows during the loop, because included files may include others.
	included := root.at("include").n
	for i := 0; included.Kind == yaml.SequenceNode && i < len(included.Content); i++ {
		item := root.at("include").item(i)
		pattern, err := s.expand(item.n.Value)
		if err != nil || item.n.Kind != yaml.ScalarNode {
			continue // decode reports it
		}
		paths, err := s.matching(pattern)
		if err != nil {
			// paths is nil after an error, so the inner loop does nothing.
			item.failf("want the path of a file, or a pattern such as routes/*.yaml: %v", err)
		}
		for _, path := range paths {
			// A file that was already included, or includes itself, is skipped.
			if slices.ContainsFunc(s.parts, func(p part) bool { return filepath.Clean(p.name) == path }) {
				continue
			}
			data, err := s.read(path)
			if err != nil {
				item.failf("want a file that can be read: %v", err)
				continue
			}
			included, err := s.document(path, data)
			if err != nil {
				return err
			}
			if (node{s, included, ""}).is(yaml.MappingNode, "a mapping") {
				merge(root.n, included)
			}
		}
	}
	return nil
}

// matching returns the files that an item in the field include names.
func (s *source) matching(pattern string) ([]string, error) {
	path := s.resolve(pattern)
	// Without a special character, the item is the path of a file, which must exist.
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{path}, nil
	}
	// A generated configuration has no folder in which to search.
	if _, err := filepath.Match(pattern, ""); err != nil || s.dir == "" {
		return nil, cmp.Or(err, errors.ErrUnsupported)
	}
	// The list of matching files is also watched: a new file is a change.
	list := Content{Path: path, pattern: true}
	list.Data, _ = list.Read()
	s.contents = append(s.contents, list)
	return matches(path), nil
}

// merge adds the fields of addition to root, appending to existing lists. If both have another kind
// of field, the duplicate is a mistake, which decode reports.
func merge(root, addition *yaml.Node) {
	for i := 0; i+1 < len(addition.Content); i += 2 {
		key := addition.Content[i]
		value := addition.Content[i+1]
		// at returns an empty node if root lacks the field.
		existing := node{n: root}.at(key.Value).n
		if existing.Kind == yaml.SequenceNode && value.Kind == yaml.SequenceNode {
			existing.Content = append(existing.Content, value.Content...)
		} else {
			root.Content = append(root.Content, key, value)
		}
	}
}

// applyDefaults adds the fields in defaults to all listeners, services and routes that do not set
// them.
func (s *source) applyDefaults(root *yaml.Node) {
	defaults := node{s, root, ""}.at("defaults")
	for _, list := range []string{"listeners", "services", "routes"} {
		fields := defaults.at(list)
		if fields.n.Kind != yaml.MappingNode {
			continue // absent, or decode reports it
		}
		for i := 0; i+1 < len(fields.n.Content); i += 2 {
			name := fields.n.Content[i]
			value := fields.n.Content[i+1]
			// The value appears in several items, but a mistake in it should name the defaults.
			s.Paths[value] = fields.path + "." + name.Value
			for _, item := range (node{s, root, ""}).at(list).n.Content {
				_, present := (node{s, item, ""}).value().Field(name.Value)
				if item.Kind == yaml.MappingNode && !present {
					item.Content = append(item.Content, name, value)
				}
			}
		}
	}
}

// variable matches an environment variable in a value, or "$${", which stands for "${".
var variable = regexp.MustCompile(`\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{`)

// expand replaces variables in a value. Its errors say only what is allowed, as for [scalar].
func (s *source) expand(text string) (string, error) {
	if s.env == nil || !strings.Contains(text, "${") {
		return text, nil
	}
	var mistake error
	// ReplaceAllStringFunc does not pass groups, so each reference is matched again.
	return variable.ReplaceAllStringFunc(text, func(reference string) string {
		groups := variable.FindStringSubmatch(reference)
		name := groups[1]
		hasDefault := groups[2] != ""
		value := ""
		ok := false
		if name != "" {
			value, ok = s.env(name)
		}
		// The order matters: "$${" has no name, and a default also replaces an empty value.
		switch {
		case reference == "$${":
			return "${"
		case name == "":
			mistake = errors.New("a variable such as ${NAME} or ${NAME:-default}, or $${ for the text ${")
		case hasDefault && value == "":
			return groups[3]
		case !ok:
			mistake = fmt.Errorf("the environment variable %s, which is not set, or a default: ${%[1]s:-text}", name)
		}
		return value
	}), mistake
}
