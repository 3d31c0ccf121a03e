package profiles

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// StringMatch is a condition on the value of a header field, a query parameter or a
// host: an [Exact], a [Prefix], a [Suffix], a [Regex] or [AnyValue].
type StringMatch interface {
	isStringMatch()
}

// The kinds of StringMatch.
type (
	// Exact holds for a value that is equal to the Exact. An empty Exact holds for an empty value.
	Exact string

	// Prefix holds for values that begin with the Prefix. An empty Prefix is invalid; use
	// [AnyValue] to match every value.
	Prefix string

	// Suffix holds for values that end with the Suffix and are longer. An empty Suffix is invalid.
	// Suffix(".example.com") holds for all hosts below example.com.
	Suffix string

	// Regex is a regular expression of package regexp that must match the whole value. Unlike in a
	// [Path], "a|b" means "^(?:a|b)$". The size limits of a Path apply.
	Regex string

	// AnyValue holds for every value, including an empty one.
	AnyValue struct{}
)

func (Exact) isStringMatch()    {}
func (Prefix) isStringMatch()   {}
func (Suffix) isStringMatch()   {}
func (Regex) isStringMatch()    {}
func (AnyValue) isStringMatch() {}

type stringKind uint8

const (
	matchPresent stringKind = iota
	matchExact
	matchPrefix
	matchSuffix
	matchRegex
)

// stringMatcher is a compiled StringMatch.
type stringMatcher struct {
	kind stringKind
	want string // the text of the Exact, Prefix, Suffix or Regex
	re   *regexp.Regexp
}

// compileStringMatch compiles a condition on a value. The argument fold reports whether the
// condition ignores case.
func compileStringMatch(t StringMatch, fold bool) (stringMatcher, error) {
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
	case Suffix:
		if t == "" {
			return stringMatcher{}, errors.New("suffix is empty: AnyValue holds for any value")
		}
		return stringMatcher{kind: matchSuffix, want: string(t)}, nil
	case Regex:
		re, err := t.compile(fold)
		return stringMatcher{kind: matchRegex, want: string(t), re: re}, err
	case AnyValue:
		return stringMatcher{}, nil
	}
	return stringMatcher{}, fmt.Errorf("%T is not a condition on a value", t)
}

// compile compiles the expression so that it must match a whole value. For this purpose it puts a
// group and anchors around the expression. It parses the expression before it adds the group.
// Otherwise "a)|(b" would end the group, and "\Qa" would quote its end.
func (r Regex) compile(fold bool) (*regexp.Regexp, error) {
	flags := syntax.Perl
	if fold {
		flags |= syntax.FoldCase
	}
	tree, err := parseRegex(string(r), flags)
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
	case matchSuffix:
		return len(s) > len(t.want) && strings.HasSuffix(s, t.want)
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
	case matchSuffix:
		return fmt.Sprintf("ends with %q", t.want)
	case matchRegex:
		return fmt.Sprintf("matches %q", t.want)
	case matchPresent:
	}
	return "is present"
}
