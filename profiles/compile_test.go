package profiles

import (
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hostile is 109 bytes, and a hundred thousand instructions.
var hostile = "(/" + strings.Repeat("a?", 50) + "){1000}"

func TestCompileLargeExpressions(t *testing.T) {
	for pattern, why := range map[string]string{
		hostile:                        "instructions with its repeats written out, at most 10000",
		"/" + strings.Repeat("a", 1e4): "bytes, at most 10000",
		strings.Repeat(`\pL`, 1000):    "instructions",
		"(/[^/]{1,20}){1,50}[^/]{1,1000}" + strings.Repeat("[ab]{1,1000}", 4): "instructions",
		strings.Repeat("(a?){1000}", 4):                                       "instructions",
	} {
		for _, m := range []leaf{
			Path(pattern), Header{Name: "x", Value: Regex(pattern)}, Query{"x", Regex(pattern)}, Host{Regex(pattern)},
		} {
			_, err := m.compile()
			require.ErrorIs(t, err, errTooLarge, "%T", m)
			require.ErrorContains(t, err, why)
			require.Less(t, len(err.Error()), 600, "an error is for people")
		}
		_, err := Trailer{"x", Regex(pattern)}.compileResponse()
		require.ErrorIs(t, err, errTooLarge)
	}
	for _, pattern := range []string{
		"/[^/]{1,1000}", "/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "(/[^/]{1,64}){1,10}", `\pL{1,100}`,
		"/(" + strings.Repeat("books|", 1000) + "authors)",
	} {
		_, err := Path(pattern).compile()
		require.NoError(t, err)
	}
}

// The count is an upper bound for the program of package regexp.
func TestInstructionsBound(t *testing.T) {
	tree := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{
		"a", "/", "[^/]", `\d`, ".", "(", "(?:", ")", "|", "*", "+", "?", "*?", "{0}", "{3}", "{2,}", "{0,}", "{1,}", "{1,7}", "{0,5}", "^", "$", `\b`, `\pL`,
		"(?i)",
	}), 1, 20), func(pieces []string) *syntax.Regexp {
		parsed, err := syntax.Parse(strings.Join(pieces, ""), syntax.Perl)
		if err != nil {
			return nil
		}
		return parsed
	}).Filter(func(tree *syntax.Regexp) bool { return tree != nil })
	rapid.Check(t, func(t *rapid.T) {
		tree := tree.Draw(t, "tree")
		counted := instructions(tree)
		program, err := syntax.Compile(tree.Simplify())
		require.NoError(t, err)
		require.LessOrEqual(t, len(program.Inst), counted+2, "%v", tree) // there is one at either end
	})
}
