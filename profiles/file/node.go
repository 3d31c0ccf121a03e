package file

import (
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/internal/yamlfile"
)

// notes collects the mistakes and the warnings of a file.
type notes struct {
	file     string
	lines    int // number of lines in the file
	wrong    []*Error
	warnings []*Error
}

// value is a node of a YAML document, with its path from the root.
type value struct {
	*notes
	n    *yaml.Node
	path string
}

// fields maps the name of each field of a mapping to the function that reads it.
type fields map[string]func(value)

// failf adds a mistake at v.
func (v value) failf(format string, args ...any) {
	v.wrong = append(v.wrong, v.note(fmt.Sprintf(format, args...)))
}

// warnf adds a warning for a part that is left out because linkerd leaves it out.
func (v value) warnf(format string, args ...any) {
	v.warnings = append(v.warnings, v.note(fmt.Sprintf(format, args...)))
}

// note returns an Error at the position of v. For a part that is missing at the end of
// the file, it uses the last line.
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

// isNull reports whether v is null. A null field is treated as missing.
func (v value) isNull() bool { return yamlfile.IsNull(v.n) }

// each calls f with every key and value of a mapping. Other nodes, duplicate keys and
// keys that are not scalars are mistakes. Null counts as an empty mapping.
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

// read calls the function of each field of a mapping. Unknown fields are mistakes. Null
// fields are skipped.
func (v value) read(known fields) {
	v.each(func(key, item value) {
		read, ok := known[key.n.Value]
		switch {
		case !ok:
			key.n = &yaml.Node{Line: key.n.Line, Column: key.n.Column} // the path contains the name
			key.failf("unknown field: there are %s", names(known))
		case !item.isNull():
			read(item)
		}
	})
}

// field returns the field of a mapping with this name. ok is false if it does not exist.
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

// require adds a mistake if the mapping has no field with this name.
func (v value) require(name, want string) {
	if item, ok := v.field(name); v.n.Kind == yaml.MappingNode && (!ok || item.isNull()) {
		item.path = below(v.path, name)
		item.failf("missing: write %s", want)
	}
}

// items returns the members of a list. Null counts as an empty list.
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

// oneOrMore returns the members of a list, or v itself if v is not a list.
func (v value) oneOrMore() []value {
	if v.n.Kind == yaml.ScalarNode {
		return []value{v}
	}
	return v.items()
}

// text returns the text of a scalar. For other nodes it adds a mistake.
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

// maxPath limits the nesting of a document, as the length of a path in bytes.
const maxPath = 1000

func (v value) tooDeep() bool {
	if len(v.path) <= maxPath {
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

// into returns a function that parses a scalar and stores the result in field. If parse
// returns false, it adds the mistake "want ...".
func into[T any](field *T, want string, parse func(string) (T, bool)) func(value) {
	return func(v value) {
		text, ok := v.text()
		if !ok {
			return
		}
		parsed, ok := parse(text)
		if !ok {
			v.failf("want %s", want)
			return
		}
		*field = parsed
	}
}

func word(field *string) func(value) {
	return into(field, "a text that is not empty", func(s string) (string, bool) { return s, s != "" })
}

func anyText(field *string) func(value) {
	return into(field, "", func(s string) (string, bool) { return s, true })
}

// boolean reads true or false. It rejects yes, no, on and off, as YAML 1.2 does.
func boolean(field *bool) func(value) {
	return into(field, "true or false", parseBool)
}

func parseBool(s string) (value, ok bool) { return s == "true", s == "true" || s == "false" }

const aDuration = "a duration such as 300ms, 10s or 1m30s"

// duration reads a duration of at least 0.
func duration(field *time.Duration) func(value) {
	return into(field, aDuration, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d >= 0
	})
}

// signedDuration reads a duration as linkerd's controller does.
func signedDuration(field *time.Duration) func(value) {
	return into(field, aDuration, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil
	})
}

func count(field *int, most int) func(value) {
	return into(field, "a whole number from 0 to "+strconv.Itoa(most), func(s string) (int, bool) {
		n, err := strconv.ParseUint(s, 10, 31)
		return int(n), err == nil && n <= uint64(most)
	})
}

func count32(field *uint32, most uint32) func(value) {
	return into(field, "a whole number from 0 to "+strconv.FormatUint(uint64(most), 10), func(s string) (uint32, bool) {
		n, err := strconv.ParseUint(s, 10, 32)
		return uint32(n), err == nil && n <= uint64(most)
	})
}

func number(field *float64) func(value) {
	return into(field, "a number from 0", func(s string) (float64, bool) {
		f, err := strconv.ParseFloat(s, 64)
		return f, err == nil && f >= 0 && !math.IsInf(f, 0)
	})
}

func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0
}

// withPort returns authority, with port added if it has none.
func withPort(authority string, port uint16) string {
	if _, _, err := net.SplitHostPort(authority); err == nil {
		return authority
	}
	return net.JoinHostPort(authority, strconv.Itoa(int(port)))
}

// labels reads a mapping from names to texts.
func labels(field *map[string]string) func(value) {
	return func(v value) {
		read := make(map[string]string, len(v.n.Content)/2)
		v.each(func(key, item value) {
			if key.n.Value == "" {
				key.failf("a label without a name")
			}
			if text, ok := item.text(); ok {
				read[key.n.Value] = text
			}
		})
		if len(read) > 0 {
			*field = read
		}
	}
}
