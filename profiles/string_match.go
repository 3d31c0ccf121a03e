package profiles

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
)

// StringMatch is a condition on a header field's value, a query parameter or a host: an [Exact],
// [Prefix], [Suffix], [Contains], [Regex], [Range] or [AnyValue], or one of these in [IgnoreCase].
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

	// Contains holds for values that contain it. An empty Contains is invalid.
	Contains string

	// Range holds for whole decimal numbers from Min to Max, both included, such as "-7" or "20".
	Range struct{ Min, Max int64 }

	// IgnoreCase holds for a value that satisfies Value if upper and lower case are not distinguished.
	IgnoreCase struct{ Value StringMatch }

	// Regex is a regular expression, in package regexp's syntax, that must match the whole value.
	// Unlike in a [Path], "a|b" means "^(?:a|b)$". The same size limits as for a Path apply.
	Regex string

	// AnyValue holds for every value, including an empty one.
	AnyValue struct{}
)

// isStringMatch marks the types that implement [StringMatch].
func (Exact) isStringMatch()      {}
func (Prefix) isStringMatch()     {}
func (Suffix) isStringMatch()     {}
func (Contains) isStringMatch()   {}
func (Regex) isStringMatch()      {}
func (Range) isStringMatch()      {}
func (IgnoreCase) isStringMatch() {}
func (AnyValue) isStringMatch()   {}

// stringKind says how a stringMatcher compares. matchPresent holds for every value.
type stringKind uint8

const (
	matchPresent stringKind = iota
	matchExact
	matchPrefix
	matchSuffix
	matchContains
	matchRegex
	matchRange
)

// stringMatcher is a compiled StringMatch.
type stringMatcher struct {
	kind   stringKind
	fold   bool   // whether the condition ignores case
	want   string // the text of the Exact, Prefix, Suffix, Contains or Regex
	re     *regexp.Regexp
	within Range
}

// compileStringMatch compiles a condition on a value. If fold is true, the condition ignores case.
func compileStringMatch(t StringMatch, fold bool) (m stringMatcher, err error) {
	m.fold = fold
	switch t := t.(type) {
	case nil:
		return m, errors.New("no value: AnyValue holds for any")
	case Exact:
		m.kind, m.want = matchExact, string(t)
		return m, nil
	case Prefix:
		m.kind, m.want = matchPrefix, string(t)
		return m, notEmpty("prefix", m.want)
	case Suffix:
		m.kind, m.want = matchSuffix, string(t)
		return m, notEmpty("suffix", m.want)
	case Contains:
		m.kind, m.want = matchContains, string(t)
		return m, notEmpty("contains", m.want)
	case Regex:
		m.kind, m.want = matchRegex, string(t)
		m.re, err = t.compile(fold)
		return m, err
	case Range:
		if m.kind, m.within = matchRange, t; t.Min > t.Max {
			return m, fmt.Errorf("range %d to %d: the first number is above the last", t.Min, t.Max)
		}
		return m, nil
	// IgnoreCase only wraps another condition, which is compiled with fold.
	case IgnoreCase:
		return compileStringMatch(t.Value, true) // ignores case
	// The zero kind holds for any value.
	case AnyValue:
		return m, nil
	}
	return m, fmt.Errorf("%T is not a condition on a value", t)
}

// notEmpty returns an error if text, that of a condition of this kind, is empty.
func notEmpty(kind, text string) error {
	if text == "" {
		return fmt.Errorf("%s is empty: AnyValue holds for any value", kind)
	}
	return nil
}

// compile compiles the expression so that it must match a whole value. For this purpose it puts a
// group and anchors around the expression. It parses the expression before it adds the group.
// Otherwise "a)|(b" would end the group, and "\Qa" would quote its end.
func (r Regex) compile(fold bool) (*regexp.Regexp, error) {
	flags := syntax.Perl
	if fold {
		flags |= syntax.FoldCase
	}
	// Parsed first, because a large expression must be rejected before it is compiled.
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

func (t *stringMatcher) holds(s string) bool {
	switch t.kind {
	case matchExact:
		return len(s) == len(t.want) && t.equal(s)
	case matchPrefix:
		return len(s) >= len(t.want) && t.equal(s[:len(t.want)])
	case matchSuffix:
		return len(s) > len(t.want) && t.equal(s[len(s)-len(t.want):])
	case matchContains:
		// Without allocating a lower-case copy, each position is compared.
		for ; len(s) >= len(t.want); s = s[1:] {
			if t.equal(s[:len(t.want)]) {
				return true
			}
		}
		return false
	case matchRegex:
		return t.re.MatchString(s)
	case matchRange:
		n, err := strconv.ParseInt(s, 10, 64)
		return err == nil && t.within.Min <= n && n <= t.within.Max
	case matchPresent:
	}
	return true
}

// equal reports whether s is the wanted text.
func (t *stringMatcher) equal(s string) bool {
	return s == t.want || t.fold && strings.EqualFold(s, t.want)
}

// String returns the condition, for explanations.
func (t *stringMatcher) String() string {
	text := ""
	switch t.kind {
	case matchExact:
		text = fmt.Sprintf("is %q", t.want)
	case matchPrefix:
		text = fmt.Sprintf("begins with %q", t.want)
	case matchSuffix:
		text = fmt.Sprintf("ends with %q", t.want)
	case matchContains:
		text = fmt.Sprintf("contains %q", t.want)
	case matchRegex:
		text = fmt.Sprintf("matches %q", t.want)
	case matchRange:
		return fmt.Sprintf("is from %d to %d", t.within.Min, t.within.Max)
	case matchPresent:
		return "is present"
	}
	if t.fold {
		text += " in any case"
	}
	return text
}
