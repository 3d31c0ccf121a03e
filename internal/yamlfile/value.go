package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error describes a mistake in a file, or a part of a file that is ignored.
type Error struct {
	File   string // the name of the file
	Line   int    // from 1
	Column int    // from 1; 0 if only the line is known
	Field  string // "spec.routes[2].timeout"; empty for the whole document
	Value  string // the text of the field; empty if it is not a scalar
	Reason string // the mistake and the allowed values
}

// Error has the format of compiler messages: file:line:column: field "value": reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File + ":" + strconv.Itoa(e.Line) + ":")
	if e.Column > 0 {
		b.WriteString(strconv.Itoa(e.Column) + ":")
	}
	if e.Field != "" {
		b.WriteString(" " + e.Field)
		if e.Value != "" {
			b.WriteString(" " + strconv.Quote(e.Value))
		}
		b.WriteString(":")
	}
	b.WriteString(" " + e.Reason)
	return b.String()
}

// Located adds the prefix "file: " to an error, such as an error of the operating system. It
// returns nil for a nil err. It returns an err that wraps an [*Error] unchanged, because the text
// of an Error begins with the name of the file.
func Located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok || err == nil {
		return err
	}
	return fmt.Errorf("file: %w", err)
}

// Sort sorts list by line and column.
func Sort(list []*Error) {
	slices.SortStableFunc(list, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
}

// Join sorts list by line and column, and joins it into one error. It returns nil if list is
// empty.
func Join(list []*Error) error {
	Sort(list)
	errs := make([]error, 0, len(list))
	for _, e := range list {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// File collects the mistakes and the warnings of one file.
type File struct {
	Name     string
	Mistakes []*Error
	Warnings []*Error
	lines    int // number of lines in the file
}

// NewFile returns a File without mistakes. name is the name of the file, and data is its
// content.
func NewFile(name string, data []byte) *File {
	return &File{Name: name, lines: 1 + bytes.Count(data, []byte("\n"))}
}

// Value is a node of a YAML document, with its path from the root.
type Value struct {
	*File
	Node *yaml.Node
	Path string
}

// Fields maps the name of each allowed field of a mapping to the function that reads the
// value of the field.
type Fields map[string]func(Value)

// Names returns the names of the allowed fields as a text for an error message.
func (f Fields) Names() string { return strings.Join(slices.Sorted(maps.Keys(f)), ", ") }

// Failf adds a mistake at the position of v. The arguments form the reason.
func (v Value) Failf(format string, args ...any) {
	v.Mistakes = append(v.Mistakes, v.Note(fmt.Sprintf(format, args...)))
}

// Warnf adds a warning at the position of v. The arguments form the reason.
func (v Value) Warnf(format string, args ...any) {
	v.Warnings = append(v.Warnings, v.Note(fmt.Sprintf(format, args...)))
}

// Note returns an Error at the position of v. If the parser reports a line after the end of the
// file, the position is the last line.
func (v Value) Note(reason string) *Error {
	e := &Error{File: v.Name, Line: min(max(v.Node.Line, 1), v.lines), Column: v.Node.Column, Field: v.Path, Reason: reason}
	if v.Node.Kind == yaml.ScalarNode && !v.IsNull() {
		e.Value = abbreviate(v.Node.Value)
	}
	return e
}

func abbreviate(s string) string {
	const enough = 80
	if len(s) <= enough {
		return s
	}
	return strings.ToValidUTF8(s[:enough], "") + "…"
}

// IsNull reports whether v is null. A null field is treated as missing.
func (v Value) IsNull() bool { return IsNull(v.Node) }

// Each calls f with every key of the mapping v and its value. It adds a mistake if v is not
// a mapping, and for each duplicate key and each key that is not a scalar. Null counts as
// an empty mapping.
func (v Value) Each(f func(key, item Value)) {
	if v.IsNull() {
		return
	}
	if !v.Is(yaml.MappingNode, "a mapping") {
		return
	}
	first := make(map[string]int, len(v.Node.Content)/2)
	for i := 0; i+1 < len(v.Node.Content); i += 2 {
		key := Value{v.File, v.Node.Content[i], v.Path}
		name, ok := key.Text()
		if !ok {
			continue
		}
		path := below(v.Path, name)
		key.Path = path
		if was, twice := first[name]; twice {
			key.Failf("given twice, first in line %d: take one out", was)
			continue
		}
		first[name] = key.Node.Line
		f(key, Value{v.File, v.Node.Content[i+1], path})
	}
}

func below(path, name string) string {
	if strings.ContainsAny(name, ".[] ") || name == "" {
		return path + "[" + strconv.Quote(abbreviate(name)) + "]"
	}
	if path == "" {
		return abbreviate(name)
	}
	return path + "." + abbreviate(name)
}

// Read reads the mapping v. For each field with a name in the argument known, it calls the
// function of this name with the value of the field. It skips a field with the value null.
// It adds a mistake for a field with another name.
func (v Value) Read(known Fields) {
	v.Each(func(key, item Value) {
		read, ok := known[key.Node.Value]
		switch {
		case !ok:
			key.Node = &yaml.Node{Line: key.Node.Line, Column: key.Node.Column} // the path contains the name
			key.Failf("unknown field: there are %s", known.Names())
		case !item.IsNull():
			read(item)
		}
	})
}

// Field returns the value of the field with the given name in the mapping v. The second
// result is false if v has no such field.
func (v Value) Field(name string) (Value, bool) {
	if v.Node.Kind != yaml.MappingNode {
		return v, false
	}
	for i := 0; i+1 < len(v.Node.Content); i += 2 {
		if v.Node.Content[i].Value == name {
			return Value{v.File, v.Node.Content[i+1], below(v.Path, name)}, true
		}
	}
	return v, false
}

// Require adds a mistake if the mapping v has no field with the given name, or if the field
// is null. The argument want describes the required value in the text of the mistake.
func (v Value) Require(name, want string) {
	if item, ok := v.Field(name); v.Node.Kind == yaml.MappingNode && (!ok || item.IsNull()) {
		item.Path = below(v.Path, name)
		item.Failf("missing: write %s", want)
	}
}

// Items returns the members of the list v. It adds a mistake if v is not a list. Null
// counts as an empty list.
func (v Value) Items() []Value {
	if v.IsNull() || !v.Is(yaml.SequenceNode, "a list") {
		return nil
	}
	items := make([]Value, 0, len(v.Node.Content))
	for i, n := range v.Node.Content {
		items = append(items, Value{v.File, n, fmt.Sprintf("%s[%d]", v.Path, i)})
	}
	return items
}

// Members returns the members of the list v that are not null. For each null it adds a mistake with
// the text in the argument reason. For a v that is not a list, it does the same as Items.
func (v Value) Members(reason string) []Value {
	return slices.DeleteFunc(v.Items(), func(item Value) bool {
		if item.IsNull() {
			item.Failf("%s", reason)
		}
		return item.IsNull()
	})
}

// OneOrMore returns the members of the list v. If v is a scalar, it returns v as the only
// member.
func (v Value) OneOrMore() []Value {
	if v.Node.Kind == yaml.ScalarNode {
		return []Value{v}
	}
	return v.Items()
}

// Text returns the text of the scalar v. For null and for other nodes it adds a mistake and
// returns false.
func (v Value) Text() (string, bool) {
	if !v.Is(yaml.ScalarNode, "a single value") {
		return "", false
	}
	if v.IsNull() {
		v.Failf(`no value: write one, or "" for an empty one`)
		return "", false
	}
	return v.Node.Value, true
}

// maxPath is the largest length of the path of a value, in bytes. It limits the nesting of
// a document.
const maxPath = 1000

// TooDeep reports whether v is nested too deeply: see maxPath. If so, it adds a mistake.
func (v Value) TooDeep() bool {
	if len(v.Path) <= maxPath {
		return false
	}
	v.Failf("nested too deeply")
	return true
}

// Is reports whether v has the given kind and no explicit YAML tag. Otherwise it adds a
// mistake, in which the argument want describes the kind.
func (v Value) Is(kind yaml.Kind, want string) bool {
	if v.Node.Kind == kind && v.Node.Style&yaml.TaggedStyle == 0 {
		return true
	}
	v.Failf("want %s, not %s", want, Kind(v.Node))
	return false
}

// Into returns a function that parses a scalar by the function parse and stores the result in
// *field. If parse returns an error, the returned function adds a mistake with the text of the
// error.
func Into[T any](field *T, parse func(string) (T, error)) func(Value) {
	return func(v Value) {
		text, ok := v.Text()
		if !ok {
			return
		}
		parsed, err := parse(text)
		if err != nil {
			v.Failf("%v", err)
			return
		}
		*field = parsed
	}
}

// Boolean returns a function that reads the value true or false and stores it in *field. The
// function rejects yes, no, on and off, as YAML 1.2 does.
func Boolean(field *bool) func(Value) {
	return Into(field, func(s string) (bool, error) {
		if s != "true" && s != "false" {
			return false, errors.New("want true or false")
		}
		return s == "true", nil
	})
}

// Labels returns a function that reads a mapping from names of labels to values into field.
func Labels(field *map[string]string) func(Value) {
	return func(v Value) {
		read := make(map[string]string, len(v.Node.Content)/2)
		v.Each(func(key, item Value) {
			if key.Node.Value == "" {
				key.Failf("a label without a name")
			}
			if text, ok := item.Text(); ok {
				read[key.Node.Value] = text
			}
		})
		if len(read) > 0 {
			*field = read
		}
	}
}
