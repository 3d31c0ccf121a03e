package file

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// notes collects what is wrong with a file, and what is left out of it.
type notes struct {
	file     string
	lines    int // in the file
	wrong    []*Error
	warnings []*Error
}

// value is a node of a file, and the way to it from the root of its document.
type value struct {
	*notes
	n    *yaml.Node
	path string
}

// fields says what reads each field of a mapping.
type fields map[string]func(value)

func (v value) failf(format string, args ...any) {
	v.wrong = append(v.wrong, v.note(fmt.Sprintf(format, args...)))
}

// warnf notes what linkerd takes without a word, and leaves out.
func (v value) warnf(format string, args ...any) {
	v.warnings = append(v.warnings, v.note(fmt.Sprintf(format, args...)))
}

// note is about v. What is missing at the very end of a file has a line after
// the last one, which no editor can go to.
func (v value) note(reason string) *Error {
	e := &Error{File: v.file, Line: min(max(v.n.Line, 1), v.lines), Column: v.n.Column, Field: v.path, Reason: reason}
	if v.n.Kind == yaml.ScalarNode && !v.isNull() {
		e.Value = abbreviate(v.n.Value)
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

// isNull reports whether v says nothing, which is as good as not being there.
func (v value) isNull() bool { return yamlfile.IsNull(v.n) }

// each calls f with every key and its value. What is no mapping, is a key twice
// or cannot be a key, is a mistake. Null is a mapping of nothing.
func (v value) each(f func(key, item value)) {
	if v.isNull() {
		return
	}
	if !v.is(yaml.MappingNode, "a mapping") {
		return
	}
	first := make(map[string]int, len(v.n.Content)/2)
	for i := 0; i+1 < len(v.n.Content); i += 2 {
		key := value{v.notes, v.n.Content[i], v.path}
		name, ok := key.text()
		if !ok {
			continue
		}
		path := below(v.path, name)
		key.path = path
		if was, twice := first[name]; twice {
			key.failf("given twice, first in line %d: take one out", was)
			continue
		}
		first[name] = key.n.Line
		f(key, value{v.notes, v.n.Content[i+1], path})
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

// read gives each field of a mapping to what reads it. Others are mistakes, and
// those that are null are not there.
func (v value) read(known fields) {
	v.each(func(key, item value) {
		read, ok := known[key.n.Value]
		switch {
		case !ok:
			key.n = &yaml.Node{Line: key.n.Line, Column: key.n.Column} // the path has its text
			key.failf("unknown field: there are %s", names(known))
		case !item.isNull():
			read(item)
		}
	})
}

// field returns an item of a mapping, and does not look at the others.
func (v value) field(name string) (value, bool) {
	if v.n.Kind != yaml.MappingNode {
		return v, false
	}
	for i := 0; i+1 < len(v.n.Content); i += 2 {
		if v.n.Content[i].Value == name {
			return value{v.notes, v.n.Content[i+1], below(v.path, name)}, true
		}
	}
	return v, false
}

// require notes that a mapping has no such field.
func (v value) require(name, want string) {
	if item, ok := v.field(name); v.n.Kind == yaml.MappingNode && (!ok || item.isNull()) {
		item.path = below(v.path, name)
		item.failf("missing: write %s", want)
	}
}

// items returns the members of a list; null has none.
func (v value) items() []value {
	if v.isNull() || !v.is(yaml.SequenceNode, "a list") {
		return nil
	}
	items := make([]value, 0, len(v.n.Content))
	for i, n := range v.n.Content {
		items = append(items, value{v.notes, n, fmt.Sprintf("%s[%d]", v.path, i)})
	}
	return items
}

// oneOrMore returns the members of a list, or v itself if it is a single value.
func (v value) oneOrMore() []value {
	if v.n.Kind == yaml.ScalarNode {
		return []value{v}
	}
	return v.items()
}

// text returns a scalar as it is written.
func (v value) text() (string, bool) {
	if !v.is(yaml.ScalarNode, "a single value") {
		return "", false
	}
	if v.isNull() {
		v.failf(`no value: write one, or "" for an empty one`)
		return "", false
	}
	return v.n.Value, true
}

// deepest is how long the way to what may be nested may be, in bytes: some
// hundred levels. The way to each is kept while those below it are read.
const deepest = 1000

func (v value) tooDeep() bool {
	if len(v.path) <= deepest {
		return false
	}
	v.failf("nested too deeply")
	return true
}

func (v value) is(kind yaml.Kind, want string) bool {
	if v.n.Kind == kind && v.n.Style&yaml.TaggedStyle == 0 {
		return true
	}
	v.failf("want %s, not %s", want, yamlfile.Kind(v.n))
	return false
}

func names(known fields) string { return strings.Join(slices.Sorted(maps.Keys(known)), ", ") }
