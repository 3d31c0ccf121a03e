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
	File   string // file name; empty for a value made by a program
	Line   int    // from 1; 0 without a file
	Column int    // from 1; 0 if only the line is known
	Field  string // "spec.routes[2].timeout"; empty for the whole document
	Value  string // the field's text; empty if it is not a scalar
	Reason string // the mistake and the allowed values
}

// Error is formatted like compiler messages: file:line:column: field "value": reason.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Mistake()
	}
	position := e.File + ":" + strconv.Itoa(e.Line) + ": "
	if e.Column > 0 {
		position = e.File + ":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Column) + ": "
	}
	return position + e.Mistake()
}

// Mistake returns the error text without the position: field "value": reason.
func (e *Error) Mistake() string {
	switch {
	case e.Field == "":
		return e.Reason
	case e.Value == "":
		return e.Field + ": " + e.Reason
	}
	return e.Field + " " + strconv.Quote(e.Value) + ": " + e.Reason
}

// Located prefixes an error, for example from the operating system, with "file: ". It returns nil
// for a nil err. An err that wraps an [*Error] is returned unchanged, because that already begins
// with the file name.
func Located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok || err == nil {
		return err
	}
	return fmt.Errorf("file: %w", err)
}

// Sort sorts list by the line and column of the mistakes, so that they are shown in the file's
// order.
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

// File collects the mistakes and warnings in one file.
type File struct {
	Name     string
	Mistakes []*Error
	Warnings []*Error

	// Origin maps a line in f to a file and a line in it, if f was put together from several
	// files. It is nil for a single file.
	Origin func(line int) (name string, number int)
	// Paths overrides the paths of nodes that occur in several places in the document, all in the same
	// field of one struct type.
	Paths map[*yaml.Node]string

	lines int // number of lines in the file
}

// NewFile returns a File without mistakes. name is the file name, and data is its content.
func NewFile(name string, data []byte) *File {
	return &File{Name: name, lines: 1 + bytes.Count(data, []byte("\n"))}
}

// Append adds the lines in data, another file, to f's, and returns how many lines there were before.
// Use it for a document whose nodes come from several files.
func (f *File) Append(data []byte) (offset int) {
	offset = f.lines
	f.lines += 1 + bytes.Count(data, []byte("\n"))
	return offset
}

// Value is a node of a YAML document, with its path from the root.
type Value struct {
	*File
	Node *yaml.Node
	Path string
}

// Fields maps the name of each allowed field in a mapping to the function that reads its value.
type Fields map[string]func(Value)

// Names returns the allowed fields' names, for an error message.
func (f Fields) Names() string { return sortedNames(f) }

// sortedNames returns the names of fields, sorted and separated by commas, for an error message.
func sortedNames[V any](fields map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
}

// Program returns value as a document, which may be nil, for reporting mistakes in values that a
// program has made. Its fields have paths, but no positions.
func Program(value any) Value { return Value{File: new(File), Node: Tree(value)} }

// Rejectf adds a mistake at v, whose value is given. The reason is formatted as by [fmt.Sprintf].
func (v Value) Rejectf(value any, format string, args ...any) {
	mistake := v.Note(fmt.Sprintf(format, args...))
	if mistake.Value == "" {
		mistake.Value = abbreviate(fmt.Sprint(value))
	}
	v.Mistakes = append(v.Mistakes, mistake)
}

// Failf adds a mistake at v. The reason is formatted as by [fmt.Sprintf].
func (v Value) Failf(format string, args ...any) {
	v.Mistakes = append(v.Mistakes, v.Note(fmt.Sprintf(format, args...)))
}

// Warnf adds a warning at v. The reason is formatted as by [fmt.Sprintf].
func (v Value) Warnf(format string, args ...any) {
	v.Warnings = append(v.Warnings, v.Note(fmt.Sprintf(format, args...)))
}

// Note returns an Error that is located at v. If the parser reports a line after the end of the
// file, the position is the last line.
func (v Value) Note(reason string) *Error {
	e := &Error{File: v.Name, Line: min(max(v.Node.Line, 1), v.lines), Column: v.Node.Column, Field: v.Path, Reason: reason}
	if v.Node.Kind == yaml.ScalarNode && !v.IsNull() {
		e.Value = abbreviate(v.Node.Value)
	}
	return e
}

// abbreviate returns s, or its beginning if s is long, for an error message.
func abbreviate(s string) string {
	const enough = 80
	if len(s) <= enough {
		return s
	}
	return strings.ToValidUTF8(s[:enough], "") + "…"
}

// IsNull reports whether v is null. A null field is treated as missing.
func (v Value) IsNull() bool { return IsNull(v.Node) }

// Each calls f for every key and value in the mapping v. Mistakes are a v that is not a mapping,
// duplicate keys, and keys that are not scalars. Null counts as an empty mapping.
func (v Value) Each(f func(key, item Value)) {
	if v.IsNull() {
		return
	}
	if !v.Is(yaml.MappingNode, "a mapping") {
		return
	}
	lines := make(map[string]int) // the line in which each key came first
	for i := 0; i+1 < len(v.Node.Content); i += 2 {
		key := Value{v.File, v.Node.Content[i], v.Path}
		name, ok := key.Text()
		if !ok {
			continue
		}
		item := v.child(name, v.Node.Content[i+1])
		// Mistakes of the key are reported with the path of the field.
		key.Path = item.Path
		if line, twice := lines[name]; twice {
			key.hidden(key.Path).Failf("given twice, first in %s: take one out", v.lineName(line, key.Node.Line))
			continue
		}
		lines[name] = key.Node.Line
		f(key, item)
	}
}

// child returns n, which is the value of v's field with the given name, as a Value with its path.
func (v Value) child(name string, n *yaml.Node) Value {
	if path := v.Paths[n]; path != "" {
		return Value{v.File, n, path}
	}
	return Value{v.File, n, fieldPath(v.Path, name)}
}

// hidden returns a Value in the same place as v. Mistakes reported there do not show v's text.
func (v Value) hidden(path string) Value {
	return Value{v.File, &yaml.Node{Line: v.Node.Line, Column: v.Node.Column}, path}
}

// lineName names a line in a message that is about another line.
func (f *File) lineName(line, other int) string {
	if f.Origin == nil {
		return fmt.Sprintf("line %d", line)
	}
	name, number := f.Origin(line)
	if here, _ := f.Origin(other); here != name {
		return fmt.Sprintf("%s:%d", name, number)
	}
	return fmt.Sprintf("line %d", number)
}

// fieldPath returns the path of a field in the value at path. A name that would be ambiguous in a path
// is quoted.
func fieldPath(path, name string) string {
	if strings.ContainsAny(name, ".[] ") || name == "" {
		return path + "[" + strconv.Quote(abbreviate(name)) + "]"
	}
	if path == "" {
		return abbreviate(name)
	}
	return path + "." + abbreviate(name)
}

// Read calls, for each field in the mapping v, the function that fields lists under its name.
// Null fields are skipped, and unknown ones are mistakes.
func (v Value) Read(fields Fields) {
	v.Each(func(key, item Value) {
		read, ok := fields[key.Node.Value]
		switch {
		case !ok:
			key.unknown(fields.Names())
		case !item.IsNull():
			read(item)
		}
	})
}

// unknown adds the mistake that the key v is not one of names.
func (v Value) unknown(names string) { v.hidden(v.Path).Failf("unknown field: there are %s", names) }

// Field returns the value of v's field with the given name, or false if there is none.
func (v Value) Field(name string) (Value, bool) {
	if n := v.fieldNode(name); n != nil {
		return v.child(name, n), true
	}
	return v, false
}

// fieldNode returns the node of v's field with the given name, or nil if there is none.
func (v Value) fieldNode(name string) *yaml.Node {
	if v.Node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(v.Node.Content); i += 2 {
		if v.Node.Content[i].Value == name {
			return v.Node.Content[i+1]
		}
	}
	return nil
}

// At returns the value of v's field with the given name. For an absent field, it returns a null
// value with the field's path and v's position.
func (v Value) At(name string) Value {
	if item, ok := v.Field(name); ok {
		return item
	}
	return v.hidden(fieldPath(v.Path, name))
}

// Has reports whether the mapping v contains the named field with a value other than null.
func (v Value) Has(name string) bool {
	n := v.fieldNode(name)
	return n != nil && !IsNull(n)
}

// Item returns item i of the list v, counting from 0. If the list is shorter, it returns a null
// value with the item's path and v's position.
func (v Value) Item(i int) Value {
	path := v.Path + "[" + strconv.Itoa(i) + "]"
	if v.Node.Kind == yaml.SequenceNode && i < len(v.Node.Content) {
		return Value{v.File, v.Node.Content[i], path}
	}
	return v.hidden(path)
}

// Require adds a mistake if the named field in the mapping v is missing or null. want describes
// the required value.
func (v Value) Require(name, want string) {
	if item, ok := v.Field(name); v.Node.Kind == yaml.MappingNode && (!ok || item.IsNull()) {
		item.Path = fieldPath(v.Path, name)
		item.Failf("missing: write %s", want)
	}
}

// Items returns the list's items. It adds a mistake if v is not a list. Null counts as an empty
// list.
func (v Value) Items() []Value {
	if v.IsNull() || !v.Is(yaml.SequenceNode, "a list") {
		return nil
	}
	items := make([]Value, 0, len(v.Node.Content))
	for i := range v.Node.Content {
		items = append(items, v.Item(i))
	}
	return items
}

// Members is like Items, but leaves out null items and adds a mistake with the given reason for
// each.
func (v Value) Members(reason string) []Value {
	return slices.DeleteFunc(v.Items(), func(item Value) bool {
		if item.IsNull() {
			item.Failf("%s", reason)
		}
		return item.IsNull()
	})
}

// OneOrMore returns the list's items, or v itself if it is a scalar.
func (v Value) OneOrMore() []Value {
	if v.Node.Kind == yaml.ScalarNode {
		return []Value{v}
	}
	return v.Items()
}

// Text returns the scalar's text. For null and for other nodes it adds a mistake and returns
// false.
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

// maxPath is how long a value's path may be, in bytes. It limits how deep a document nests.
const maxPath = 1000

// TooDeep reports whether v is nested too deeply: see maxPath. If so, it adds a mistake.
func (v Value) TooDeep() bool {
	if len(v.Path) <= maxPath {
		return false
	}
	v.Failf("nested too deeply")
	return true
}

// Is reports whether v is of this kind and carries no explicit YAML tag. If not, it adds a
// mistake in which want describes the kind.
func (v Value) Is(kind yaml.Kind, want string) bool {
	if v.Node.Kind == kind && v.Node.Style&yaml.TaggedStyle == 0 {
		return true
	}
	v.Failf("want %s, not %s", want, Kind(v.Node))
	return false
}

// Into returns a function that parses a scalar with parse and stores the result in *field. If parse
// returns an error, the returned function adds a mistake with the error text.
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

// Labels returns a function that reads a mapping from label names to values into field.
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
