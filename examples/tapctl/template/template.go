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
	blank string // what an object prints that has nothing
}

// Parse reads a template for objects that marshal to JSON as of does, by its
// type. The error says what is wrong, and where: also if there is a name in it
// that no such object has.
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
	t.blank, _ = t.print(fields{}) // that some ask too much of it is no mistake
	return t, nil
}

// bare is one field, in braces or not, which is what linkerd takes for one:
// .a.b, a.b, {a.b}.
var bare = regexp.MustCompile(`^(?:\{\.?([A-Za-z_][^{}]*)\}|\.?([A-Za-z_][^{}]*))$`)

// relaxed adds what was left out.
func relaxed(text string) string {
	if found := bare.FindStringSubmatch(text); found != nil {
		return "{." + found[1] + found[2] + "}"
	}
	return text
}

// Error is why an object could not be printed: it does not have what the
// template cannot do without, such as the second element of a list of one.
type Error struct{ err error }

// Error returns what is missing.
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
			err = fmt.Errorf("it cannot be followed: %v", r)
		}
	}()
	return f()
}
