// Package rustregexp checks that a regular expression means the same to proxies written in Go and
// to linkerd2-proxy, which uses Rust's regex crate. The syntaxes are nearly equal.
package rustregexp

import (
	"fmt"
	"regexp/syntax"
	"strings"
)

// Check returns an error unless pattern is a regular expression in both Go and Rust. Rust does
// not support \Q...\E, \C and octal escapes. It also rejects a brace that repeats nothing and an
// opening bracket inside a class, both of which Go takes literally.
func Check(pattern string) error { //nolint:gocyclo // one case for each construct
	if _, err := syntax.Parse(pattern, syntax.Perl); err != nil {
		return err
	}
	// inClass is true between "[" and "]". Each case below moves i to the last byte that it has handled.
	inClass := false
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch c := pattern[i]; {
		case c == '\\':
			i++ // Go has rejected a trailing backslash already
			if next := rest[1]; next >= '0' && next <= '9' || strings.IndexByte("QEC<>", next) >= 0 {
				return refused(pattern, rest[:2])
			}
			// Skip the braces, which are no repetition here.
			if strings.HasPrefix(rest, `\x{`) || strings.HasPrefix(rest, `\p{`) || strings.HasPrefix(rest, `\P{`) {
				i += strings.IndexByte(rest, '}') - 1
			}
		case inClass && c == ']':
			inClass = false
		case inClass && c == '[':
			end := strings.Index(rest, ":]")
			if !strings.HasPrefix(rest, "[:") || end < 0 {
				return refused(pattern, "[")
			}
			i += end + 1 // a class such as [:alpha:]
		// Rust gives these a meaning inside a class: intersection, difference and symmetric difference.
		case inClass && (strings.HasPrefix(rest, "&&") || strings.HasPrefix(rest, "--") || strings.HasPrefix(rest, "~~")):
			return refused(pattern, rest[:2])
		case !inClass && c == '[':
			inClass = true
			if i+1 < len(pattern) && pattern[i+1] == '^' {
				i++
			}
			if i+1 < len(pattern) && pattern[i+1] == ']' { // a bracket at the start is literal
				i++
			}
		case !inClass && c == '{':
			end := strings.IndexByte(rest, '}')
			if end < 0 || !isRepetition(rest[1:end]) {
				return refused(pattern, "{")
			}
			i += end
		}
	}
	return nil
}

// isRepetition reports whether {text} repeats what precedes it: 2, 2, or 2,3.
func isRepetition(text string) bool {
	low, high, _ := strings.Cut(text, ",")
	return low != "" && strings.Trim(low+high, "0123456789") == ""
}

// refused returns the error for a construct that only Go accepts.
func refused(pattern, construct string) error {
	return fmt.Errorf("the regular expression %q has %q, which linkerd2-proxy refuses or understands differently", pattern, construct)
}
