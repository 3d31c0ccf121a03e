package profiles

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// StringMatch is a condition on the value of a header field, a query parameter or
// a host: an [Exact], a [Prefix], a [Regex] or [AnyValue].
type StringMatch interface {
	isText()
}

// The kinds of StringMatch.
type (
	// Exact holds for this value only. It may be empty.
	Exact string

	// Prefix holds for values that begin with it. It must not be empty; use
	// [AnyValue] for that.
	Prefix string

	// Regex is a regular expression of package regexp for the whole value. It is
	// anchored at both ends with a group around it, unlike a [Path], and has the
	// same limits.
	Regex string

	// AnyValue holds for any value, an empty one included.
	AnyValue struct{}
)

func (Exact) isText()    {}
func (Prefix) isText()   {}
func (Regex) isText()    {}
func (AnyValue) isText() {}

type textKind uint8

const (
	textPresent textKind = iota
	textExact
	textPrefix
	textRegex
)

// text is a compiled StringMatch.
type text struct {
	kind textKind
	want string // the Exact, Prefix or Regex as given
	re   *regexp.Regexp
}

// compileText compiles a condition on a value. With fold it ignores case.
func compileText(t StringMatch, fold bool, c *compiler) (text, error) {
	switch t := t.(type) {
	case nil:
		return text{}, errors.New("no value: AnyValue holds for any")
	case Exact:
		return text{kind: textExact, want: string(t)}, nil
	case Prefix:
		if t == "" {
			return text{}, errors.New("prefix is empty: AnyValue holds for any value")
		}
		return text{kind: textPrefix, want: string(t)}, nil
	case Regex:
		re, err := t.compile(fold, c)
		return text{kind: textRegex, want: string(t), re: re}, err
	case AnyValue:
		return text{}, nil
	}
	return text{}, fmt.Errorf("%T is not a condition on a value", t)
}

// compile parses the expression before it puts a group around it, because "a)|(b"
// would end the group and "\Qa" would quote its end.
func (r Regex) compile(fold bool, c *compiler) (*regexp.Regexp, error) {
	flags := syntax.Perl
	if fold {
		flags |= syntax.FoldCase
	}
	tree, err := c.regex(string(r), flags)
	if err != nil {
		return nil, fmt.Errorf("regex %s: %w", quote(string(r)), err)
	}
	re, err := regexp.Compile("^(?:" + tree.String() + ")$")
	if err != nil {
		return nil, fmt.Errorf("regex %q: %w", string(r), err)
	}
	return re, nil
}

func (t text) holds(s string) bool {
	switch t.kind {
	case textExact:
		return s == t.want
	case textPrefix:
		return strings.HasPrefix(s, t.want)
	case textRegex:
		return t.re.MatchString(s)
	case textPresent:
	}
	return true
}

func (t text) String() string {
	switch t.kind {
	case textExact:
		return fmt.Sprintf("is %q", t.want)
	case textPrefix:
		return fmt.Sprintf("begins with %q", t.want)
	case textRegex:
		return fmt.Sprintf("matches %q", t.want)
	case textPresent:
	}
	return "is present"
}
