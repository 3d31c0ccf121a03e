package profiles

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

func (p Path) compile() (matcher, error) {
	pattern := anchor(string(p))
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", string(p), err)
	}
	// Most paths of most profiles are fixed strings, and comparing those is
	// many times cheaper than running a regular expression.
	if want, ok := literal(tree); ok {
		return func(_, path string) bool { return path == want }, nil
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", string(p), err)
	}
	return func(_, path string) bool { return re.MatchString(path) }, nil
}

// anchor ties a pattern to both ends of the path. It looks at the characters
// alone: `a|b` becomes `^a|b$`, and `a\$` stays open at its end. That is what
// linkerd does, and profiles may rely on it.
func anchor(pattern string) string {
	pattern = strings.TrimSpace(pattern)
	if !strings.HasPrefix(pattern, "^") {
		pattern = "^" + pattern
	}
	if !strings.HasSuffix(pattern, "$") {
		pattern += "$"
	}
	return pattern
}

// literal returns the one string that the expression matches, if it is
// anchored at both ends with nothing but a literal between.
func literal(tree *syntax.Regexp) (string, bool) {
	tree = tree.Simplify()
	last := len(tree.Sub) - 1
	if tree.Op != syntax.OpConcat || tree.Sub[0].Op != syntax.OpBeginText || tree.Sub[last].Op != syntax.OpEndText {
		return "", false
	}
	var b strings.Builder
	for _, sub := range tree.Sub[1:last] {
		if sub.Op != syntax.OpLiteral || sub.Flags&syntax.FoldCase != 0 {
			return "", false
		}
		for _, r := range sub.Rune {
			if r == utf8.RuneError {
				return "", false // it matches any byte that is not UTF-8, too
			}
			b.WriteRune(r)
		}
	}
	return b.String(), true
}
