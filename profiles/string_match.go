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
	isStringMatch()
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

func (Exact) isStringMatch()    {}
func (Prefix) isStringMatch()   {}
func (Regex) isStringMatch()    {}
func (AnyValue) isStringMatch() {}

type stringKind uint8

const (
	matchPresent stringKind = iota
	matchExact
	matchPrefix
	matchRegex
)

// text is a compiled StringMatch.
type stringMatcher struct {
	kind stringKind
	want string // the Exact, Prefix or Regex as given
	re   *regexp.Regexp
}

// compileText compiles a condition on a value. With fold it ignores case.
func compileStringMatch(t StringMatch, fold bool, c *compiler) (stringMatcher, error) {
	switch t := t.(type) {
	case nil:
		return stringMatcher{}, errors.New("no value: AnyValue holds for any")
	case Exact:
		return stringMatcher{kind: matchExact, want: string(t)}, nil
	case Prefix:
		if t == "" {
			return stringMatcher{}, errors.New("prefix is empty: AnyValue holds for any value")
		}
		return stringMatcher{kind: matchPrefix, want: string(t)}, nil
	case Regex:
		re, err := t.compile(fold, c)
		return stringMatcher{kind: matchRegex, want: string(t), re: re}, err
	case AnyValue:
		return stringMatcher{}, nil
	}
	return stringMatcher{}, fmt.Errorf("%T is not a condition on a value", t)
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

func (t stringMatcher) holds(s string) bool {
	switch t.kind {
	case matchExact:
		return s == t.want
	case matchPrefix:
		return strings.HasPrefix(s, t.want)
	case matchRegex:
		return t.re.MatchString(s)
	case matchPresent:
	}
	return true
}

func (t stringMatcher) String() string {
	switch t.kind {
	case matchExact:
		return fmt.Sprintf("is %q", t.want)
	case matchPrefix:
		return fmt.Sprintf("begins with %q", t.want)
	case matchRegex:
		return fmt.Sprintf("matches %q", t.want)
	case matchPresent:
	}
	return "is present"
}
