package settings

import (
	"fmt"
	"strings"
)

// Prefix is the prefix of linkerd's variables, and OwnPrefix the prefix of variables that
// linkerd does not have.
const (
	Prefix    = "LINKERD2_PROXY_"
	OwnPrefix = "GOTOWER_"
)

// variable is one variable and the way to parse it.
type variable struct {
	name      string                  // without its prefix
	prefix    string                  // empty means Prefix; "-" means no prefix
	oldNames  []string                // names that are read if name is not set
	overrides string                  // a variable that this one overrides; in a file it does not override the environment
	with      string                  // the other half of this variable: if the environment sets it, overrides does not apply
	def       string                  // default, in the same syntax
	help      string                  // a line
	set       func(text string) error // parses the value and the default
	lenient   bool                    // an invalid value is a warning
	ignored   string                  // reason why a value is ignored, for a warning
	hidden    bool                    // an invalid value is not shown, because it may be a secret
}

// group is variables under one title of the help.
type group struct {
	title     string
	variables []variable
}

// to returns a function that parses a text into where.
func to[T any](where *T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		value, err := parse(text)
		if err == nil {
			*where = value
		}
		return err
	}
}

// checked returns a function that validates a text and discards the value.
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

// invalid returns the error of a value.
func (v *variable) invalid(where, text string, err error) *InvalidError {
	if v.hidden {
		text = ""
	}
	return &InvalidError{Where: where, Text: text, Err: err}
}

// InvalidError is an invalid value of a variable or key.
type InvalidError struct {
	Where string // the variable, or the file with line and key
	Text  string // the value; empty if there is none or it may be a secret
	Err   error
}

// Error returns the place, the value and the reason.
func (p *InvalidError) Error() string {
	if p.Text == "" {
		return p.Where + ": " + p.Err.Error()
	}
	return fmt.Sprintf("%s=%q: %v", p.Where, shorten(p.Text), p.Err)
}

// Unwrap returns the reason.
func (p *InvalidError) Unwrap() error { return p.Err }

// shorten truncates long values such as certificates.
func shorten(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
