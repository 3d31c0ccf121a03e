package template

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"regexp"

	"k8s.io/client-go/util/jsonpath"
)

// Template prints objects of one type.
type Template struct {
	text  string
	blank string // the output of an empty object
}

// Parse parses a template for objects of the type of of, by their names in JSON. A field
// that the type does not have is an error. The error contains the place in text.
func Parse(text string, of any) (*Template, error) {
	text = relaxed(text)
	parsed, err := parse(text)
	if err != nil {
		return nil, misplaced(text, err)
	}
	if err := check(parsed.Root.Nodes, places(text), reflect.TypeOf(of)); err != nil {
		return nil, err
	}
	t := &Template{text: text}
	t.blank, _ = t.print(fields{}) // the error of a template that requires a value is ignored
	return t, nil
}

// singleField matches a template that is one field path, as linkerd accepts it: .a.b, a.b
// or {a.b}.
var singleField = regexp.MustCompile(`^(?:\{\.?([A-Za-z_][^{}]*)\}|\.?([A-Za-z_][^{}]*))$`)

// relaxed returns text with the braces and the dot that linkerd allows to omit.
func relaxed(text string) string {
	if found := singleField.FindStringSubmatch(text); found != nil {
		return "{." + found[1] + found[2] + "}"
	}
	return text
}

// Error reports that an object lacks a required value, such as the second element of a
// list of one.
type Error struct{ err error }

// Error returns the text of the cause.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Execute prints v to w. An [Error] means that nothing of v was printed; other objects
// may be printed after it. Any other error is from w.
func (t *Template) Execute(w io.Writer, v any) error {
	object, err := decode(v)
	if err != nil {
		return err
	}
	line, err := t.print(object)
	if err != nil {
		return &Error{err}
	}
	if line == "" || line == t.blank {
		return nil
	}
	if line[len(line)-1] != '\n' {
		line += "\n"
	}
	_, err = io.WriteString(w, line)
	return err
}

func (t *Template) print(object any) (line string, err error) {
	// A jsonpath.JSONPath has state, so each object needs a new one.
	path := jsonpath.New("template").AllowMissingKeys(true)
	err = guard(func() error {
		if err := path.Parse(t.text); err != nil {
			return err
		}
		var b bytes.Buffer
		err := path.Execute(&b, object)
		line = b.String()
		return err
	})
	return line, err
}

func parse(text string) (p *jsonpath.Parser, err error) {
	err = guard(func() error {
		p, err = jsonpath.Parse("template", text)
		return err
	})
	return p, err
}

// guard calls f and returns a panic as an error. client-go panics on some templates, such
// as {range .a[*]}{[0]}{end} if an object has no a.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be evaluated: %v", r)
		}
	}()
	return f()
}
