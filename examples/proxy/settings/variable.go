package settings

import (
	"fmt"
	"strings"
)

// Prefix is what stands before the names of variables that are linkerd's, and
// OwnPrefix what stands before those that linkerd has not.
const (
	Prefix    = "LINKERD2_PROXY_"
	OwnPrefix = "GOTOWER_"
)

// variable is one thing that can be said.
type variable struct {
	name   string                  // without its prefix
	prefix string                  // Prefix if empty; "-" is none
	older  []string                // names that are read if name is not there
	beats  string                  // one that this one wins over, but from the file not over one of the environment
	with   string                  // one that goes with this one: if the environment says that, beats does not count
	usual  string                  // the default, in the same syntax
	help   string                  // a line
	set    func(text string) error // takes the value, also of usual
	mild   bool                    // a bad value is a warning
	lost   string                  // why a value is not honoured: a warning
	hidden bool                    // a bad value is not shown: it may be a secret
}

// group is the variables that belong together.
type group struct {
	title     string
	variables []variable
}

// to parses a text into where.
func to[T any](where *T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		value, err := parse(text)
		if err == nil {
			*where = value
		}
		return err
	}
}

// checked parses a text that nobody asks for.
func checked[T any](parse func(string) (T, error)) func(string) error { return to(new(T), parse) }

func (v *variable) full(name string) string {
	switch v.prefix {
	case "":
		return Prefix + name
	case "-":
		return name
	}
	return v.prefix + name
}

// invalid says what is wrong with a value.
func (v *variable) invalid(where, text string, err error) *InvalidError {
	if v.hidden {
		text = ""
	}
	return &InvalidError{Where: where, Text: text, Err: err}
}

// InvalidError is a value that cannot be taken.
type InvalidError struct {
	Where string // the variable, or the file with its line and key
	Text  string // the value; empty if there is none, or if it may be a secret
	Err   error
}

// Error says where, what and why.
func (p *InvalidError) Error() string {
	if p.Text == "" {
		return p.Where + ": " + p.Err.Error()
	}
	return fmt.Sprintf("%s=%q: %v", p.Where, shorten(p.Text), p.Err)
}

// Unwrap returns why.
func (p *InvalidError) Unwrap() error { return p.Err }

// shorten keeps a certificate from filling the screen.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
