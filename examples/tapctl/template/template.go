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

// Parse parses a template for objects of the type of of, as JSON. The error has the
// place. A name that no such object has is an error.
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
	t.blank, _ = t.print(fields{}) // an error means that a template needs more than that
	return t, nil
}

// bare is one field, with or without braces, as in linkerd:
// .a.b, a.b, {a.b}.
var bare = regexp.MustCompile(`^(?:\{\.?([A-Za-z_][^{}]*)\}|\.?([A-Za-z_][^{}]*))$`)

// relaxed adds omitted braces and the dot.
func relaxed(text string) string {
	if found := bare.FindStringSubmatch(text); found != nil {
		return "{." + found[1] + found[2] + "}"
	}
	return text
}

// Error means that an object does not have a required value, such as the second
// element of a list of one.
type Error struct{ err error }

// Error returns the missing value.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Execute prints v. After an [Error] nothing of v was printed, and others may be;
// any other error is of w.
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
	// It remembers how far it came, and so is good for one object.
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

// guard calls f, which may panic: so does client-go on some templates, such as
// {range .a[*]}{[0]}{end} where there is no a.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be evaluated: %v", r)
		}
	}()
	return f()
}
