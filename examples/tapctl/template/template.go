package template

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"regexp"

	"k8s.io/client-go/util/jsonpath"
)

// Template is a parsed template that prints objects of one type. Create it with [Parse].
type Template struct {
	text  string
	blank string // the output for an object without fields
}

// Parse parses text as a template for objects of sample's type. The template uses the JSON names
// of fields. If a field does not exist in the type, the error tells its position in text.
func Parse(text string, sample any) (*Template, error) {
	// The order matters: the position of a mistake refers to the complete template.
	text = relaxed(text)
	parsed, err := parse(text)
	if err != nil {
		return nil, misplaced(text, err)
	}
	if err := check(parsed.Root.Nodes, places(text), reflect.TypeOf(sample)); err != nil {
		return nil, err
	}
	t := &Template{text: text}
	t.blank, _ = t.print(fields{}) // the error of a template that requires a value is ignored
	return t, nil
}

// singleField matches a template that is just one field, written as .a.b, a.b, {a.b} or {.a.b},
// all of which linkerd accepts.
var singleField = regexp.MustCompile(`^(?:\{\.?([A-Za-z_][^{}]*)\}|\.?([A-Za-z_][^{}]*))$`)

// relaxed returns text as a complete template. If text is a single field, such as .a.b, it adds
// the missing braces and dot. It returns any other text unchanged.
func relaxed(text string) string {
	if found := singleField.FindStringSubmatch(text); found != nil {
		// One of the two groups is always empty.
		return "{." + found[1] + found[2] + "}"
	}
	return text
}

// Error reports that an object lacks a value that the template requires. An example is the second
// element of a list with one element.
type Error struct{ err error }

// Error returns the cause's text.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the error of the template's execution.
func (e *Error) Unwrap() error { return e.err }

// Execute prints v to w. If it returns an [Error], nothing has been printed for v, and Execute
// can be called for other objects. Any other error comes from w or from encoding v.
func (t *Template) Execute(w io.Writer, v any) error {
	object, err := decode(v)
	if err != nil {
		return err
	}
	line, err := t.print(object)
	if err != nil {
		return &Error{err}
	}
	// An object without the requested fields prints nothing, or only the template's fixed text.
	if line == "" || line == t.blank {
		return nil
	}
	if line[len(line)-1] != '\n' {
		line += "\n"
	}
	_, err = io.WriteString(w, line)
	return err
}

// print returns the template's output for object, which [decode] has returned.
func (t *Template) print(object any) (line string, err error) {
	// A jsonpath.JSONPath keeps state, so each object needs a new one.
	// Missing fields print nothing, because most events lack most fields.
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

// parse parses text. A panic of client-go's parser becomes an error.
func parse(text string) (p *jsonpath.Parser, err error) {
	err = guard(func() error {
		p, err = jsonpath.Parse("template", text)
		return err
	})
	return p, err
}

// guard calls f and returns its error. If f panics, the panic becomes an error. client-go
// panics on some templates, such as {range .a[*]}{[0]}{end} for an object without the field
// a.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be evaluated: %v", r)
		}
	}()
	return f()
}
