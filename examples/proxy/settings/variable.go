package settings

import (
	"fmt"
	"strings"
)

// Prefixes of environment variables: Prefix for those of linkerd's proxy, and OwnPrefix for
// additional ones.
const (
	Prefix    = "LINKERD2_PROXY_"
	OwnPrefix = "GOTOWER_"
)

// variable describes one variable: its names, how to parse and store its value, and its line in the
// help.
type variable struct {
	name      string                  // without a prefix
	prefix    string                  // "" means Prefix; "-" means no prefix
	oldNames  []string                // former names, which are read if name is not set
	overrides string                  // a more general variable, see [reader.isOverridden]
	pair      string                  // the other half of a pair, see [reader.isOverridden]
	def       string                  // default value, in the syntax of the variable; "" means none
	help      string                  // a description of one line
	set       func(text string) error // parses text or def, and stores the value
	lenient   bool                    // an invalid value is ignored with a warning, so that the proxy starts
	ignored   string                  // why the value has no effect, for a warning; usually ""
	hidden    bool                    // errors omit the value, because it may be a secret
}

// group is a section in the help.
type group struct {
	title     string
	variables []variable
}

// store returns a function for variable.set that stores parse's result in *field.
func store[T any](field *T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		value, err := parse(text)
		if err == nil {
			*field = value
		}
		return err
	}
}

// checked returns a function for variable.set that validates the text with parse, but stores
// nothing.
func checked[T any](parse func(string) (T, error)) func(string) error { return store(new(T), parse) }

// full returns name with v's prefix.
func (v *variable) full(name string) string {
	switch v.prefix {
	case "":
		return Prefix + name
	case "-":
		return name
	}
	return v.prefix + name
}

// invalid returns the error for text, an invalid value of v that was set at position.
func (v *variable) invalid(position, text string, err error) *InvalidError {
	if v.hidden {
		// The error omits an empty text.
		text = ""
	}
	return &InvalidError{Where: position, Text: text, Err: err}
}

// InvalidError reports that the value of a variable is invalid or missing.
type InvalidError struct {
	Where string // the environment variable, or the file with line and key
	Text  string // the value; "" if it is missing or may be a secret
	Err   error
}

// Error returns the place, the value and the reason on one line.
func (p *InvalidError) Error() string {
	if p.Text == "" {
		return p.Where + ": " + p.Err.Error()
	}
	return fmt.Sprintf("%s=%q: %v", p.Where, shorten(p.Text), p.Err)
}

// Unwrap returns Err, the reason without the variable's name and value.
func (p *InvalidError) Unwrap() error { return p.Err }

// shorten truncates s to 80 bytes, because some values are long: certificates, for example.
func shorten(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	// The cut may have split a character, whose beginning is removed.
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
