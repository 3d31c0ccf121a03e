package settings

import (
	"fmt"
	"strings"
)

// The prefixes of environment variables: Prefix for variables that linkerd's proxy also has,
// and OwnPrefix for the others.
const (
	Prefix    = "LINKERD2_PROXY_"
	OwnPrefix = "GOTOWER_"
)

// variable describes one variable: its names, the function that parses and stores its
// value, and its text in the help.
type variable struct {
	name      string                  // without its prefix
	prefix    string                  // "" means Prefix; "-" means no prefix
	oldNames  []string                // former names, which are read if name is not set
	overrides string                  // a more general variable, see [reader.isOverridden]
	with      string                  // the other half of a pair; see [reader.isOverridden]
	def       string                  // default value, in the syntax of the variable; "" means none
	help      string                  // description, one line
	set       func(text string) error // parses text, or def, and stores the value
	lenient   bool                    // an invalid value is a warning and not an error
	ignored   string                  // why the value has no effect, for a warning; "" if it has one
	hidden    bool                    // errors do not contain the value, because it may be a secret
}

// group is a set of variables that the help shows below one title.
type group struct {
	title     string
	variables []variable
}

// to returns a function for variable.set. It parses a text by the function parse, and
// stores the value in *where.
func to[T any](where *T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		value, err := parse(text)
		if err == nil {
			*where = value
		}
		return err
	}
}

// checked returns a function for variable.set that only validates the text with parse, and
// stores nothing.
func checked[T any](parse func(string) (T, error)) func(string) error { return to(new(T), parse) }

// full returns name with the prefix of the variable v.
func (v *variable) full(name string) string {
	switch v.prefix {
	case "":
		return Prefix + name
	case "-":
		return name
	}
	return v.prefix + name
}

// invalid returns the error for text, an invalid value of v. The argument where is the
// place where the value is set.
func (v *variable) invalid(where, text string, err error) *InvalidError {
	if v.hidden {
		text = ""
	}
	return &InvalidError{Where: where, Text: text, Err: err}
}

// InvalidError reports that the value of a variable is invalid or missing.
type InvalidError struct {
	Where string // the environment variable, or the file with line and key
	Text  string // the value; "" if it is missing or may be a secret
	Err   error
}

// Error returns the place, the value and the reason in one line.
func (p *InvalidError) Error() string {
	if p.Text == "" {
		return p.Where + ": " + p.Err.Error()
	}
	return fmt.Sprintf("%s=%q: %v", p.Where, shorten(p.Text), p.Err)
}

// Unwrap returns the error that the parser of the variable returned.
func (p *InvalidError) Unwrap() error { return p.Err }

// shorten truncates s to 80 bytes, because some values, such as certificates, are long.
func shorten(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
