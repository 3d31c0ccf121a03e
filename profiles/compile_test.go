package profiles

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hostile is 109 bytes, and a hundred thousand instructions.
var hostile = "(/" + strings.Repeat("a?", 50) + "){1000}"

func TestExpressionsThatAreTooLarge(t *testing.T) {
	for pattern, why := range map[string]string{
		hostile:                        "instructions with its repeats written out, at most 10000",
		"/" + strings.Repeat("a", 1e4): "bytes, at most 10000",
		strings.Repeat(`\pL`, 1000):    "instructions",
		"(/[^/]{1,20}){1,50}[^/]{1,1000}" + strings.Repeat("[ab]{1,1000}", 4): "instructions",
		strings.Repeat("(a?){1000}", 4):                                       "instructions",
	} {
		for _, m := range []leaf{
			Path(pattern), Header{"x", Regex(pattern)}, Query{"x", Regex(pattern)}, Host{Regex(pattern)},
		} {
			_, err := m.compile(new(compiler))
			require.ErrorIs(t, err, errTooLarge, "%T", m)
			require.ErrorContains(t, err, why)
			require.Less(t, len(err.Error()), 600, "an error is for people")
		}
		_, err := Trailer{"x", Regex(pattern)}.compileResponse(new(compiler))
		require.ErrorIs(t, err, errTooLarge)
	}
	for _, pattern := range []string{
		"/[^/]{1,1000}", "/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "(/[^/]{1,64}){1,10}", `\pL{1,100}`,
		"/(" + strings.Repeat("books|", 1000) + "authors)",
	} {
		_, err := Path(pattern).compile(new(compiler))
		require.NoError(t, err)
	}
}

// The count is an upper bound for the program of package regexp.
func TestInstructionsBoundTheProgram(t *testing.T) {
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

// Many expressions, none of which is too large alone, are so together.
func TestExpressionsThatAreTooLargeTogether(t *testing.T) {
	const each = 4000 // instructions of one route, and its bytes do not count
	p := &Profile{}
	for i := range 2 * maxRepeats / each {
		pattern := fmt.Sprintf("/%03d/(a?){990}", i)
		p.Routes = append(p.Routes, Route{Match: Any{Path(pattern), Not{Header{"x", Regex("b{20}")}}}})
	}
	p.Routes = append(p.Routes, Route{Match: Path("/small")})
	dropped := p.Validate()
	require.ErrorIs(t, dropped, errTooLarge)
	left := len(p.Routes) - strings.Count(dropped.Error(), "\n") - 1
	assert.InDelta(t, maxRepeats/each, left, 2)
	assert.NotContains(t, dropped.Error(), fmt.Sprintf("route %d:", len(p.Routes)-1), "a small route fits after a large one")

	classes := Profile{Routes: []Route{{Match: All{}}}}
	for range 2 * maxRepeats / each {
		classes.Routes[0].Classes = append(classes.Routes[0].Classes, ResponseClass{Match: Trailer{"x", Regex("(a?){990}")}})
	}
	require.ErrorIs(t, classes.Validate(), errTooLarge)

	plain := &Profile{}
	for i := range 10_000 {
		plain.Routes = append(plain.Routes, Route{Match: All{Method("GET"), Path(fmt.Sprintf(`/v1/things/%d/[^/]+/parts/\d+`, i))}})
	}
	require.NoError(t, plain.Validate(), "long expressions without repeats")
}
