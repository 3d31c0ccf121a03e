package profiles

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"
)

const (
	// maxExpression is how many bytes long an expression may be, and how many
	// instructions its repeats may make of it. Whoever writes a profile of a few
	// bytes could else have each Router take hundreds of megabytes, and each request
	// seconds: "(a?){1000}" is 4000 instructions, and each byte of a path may visit
	// them all. linkerd's bound is that of Rust's regex, 10 MiB of compiled program,
	// which costs less there.
	maxExpression = 10_000

	// maxGrowth is how many instructions the expressions of a profile may have
	// beyond their own length, all together: about a tenth of a second at worst, for
	// a path of 2 KB that keeps all of them busy. What is written out is not counted;
	// that a profile of megabytes is slow is no surprise.
	maxGrowth = 20_000
)

// errTooLarge is that an expression is beyond what is done for one.
var errTooLarge = errors.New("regular expression is too large")

// parseRegex parses an expression that is not too large.
func parseRegex(pattern string, flags syntax.Flags) (*syntax.Regexp, error) {
	if len(pattern) > maxExpression {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errTooLarge, len(pattern), maxExpression)
	}
	tree, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, err
	}
	if n := instructions(tree); n > maxExpression {
		return nil, fmt.Errorf("%w: %d instructions with its repeats written out, at most %d", errTooLarge, n, maxExpression)
	}
	return tree, nil
}

// quote is a pattern for an error, if it is long its begin.
func quote(pattern string) string {
	const enough = 200
	if len(pattern) > enough {
		return strconv.Quote(pattern[:enough]) + "…"
	}
	return strconv.Quote(pattern)
}

// instructions is how many an expression has once its repeats are written out,
// or somewhat more. The members of a class count by the memory that they take.
// Repeats of repeats are no more than 1000 in all, so that no sum is too large.
func instructions(tree *syntax.Regexp) int {
	n := 0
	for _, sub := range tree.Sub {
		n += instructions(sub)
	}
	switch tree.Op {
	case syntax.OpLiteral:
		n = len(tree.Rune)
	case syntax.OpCharClass:
		n = 1 + len(tree.Rune)/16
	case syntax.OpCapture, syntax.OpStar:
		n += 2
	case syntax.OpConcat:
	case syntax.OpAlternate:
		n += len(tree.Sub) - 1
	case syntax.OpRepeat:
		n = repeated(n, tree.Min, tree.Max)
	default: // one of its own
		n++
	}
	return max(n, 1)
}

// repeated is what n instructions are if they are there from least to most
// times; most is -1 if there is no end to it.
func repeated(n, least, most int) int {
	switch {
	case most >= 0:
		return most*n + most - least
	case least == 0:
		return n + 2
	}
	return least*n + 1
}

// growth is how many instructions the expressions of a route have beyond their
// own length. What is invalid has none: it is left out.
func (r Route) growth() int {
	n := growthOf(r.Match)
	for _, c := range r.Classes {
		n += growthOf(c.Match)
	}
	return n
}

func growthOf(m Match) int {
	switch m := m.(type) {
	case All:
		return growthOfAll(m)
	case Any:
		return growthOfAll(m)
	case Not:
		return growthOf(m.Match)
	case Path:
		return growthOfRegex(anchor(string(m)), 0)
	case Header:
		return growthOfText(m.Value, 0)
	case Query:
		return growthOfText(m.Value, 0)
	case Trailer:
		return growthOfText(m.Value, 0)
	case Host:
		return growthOfText(m.Value, syntax.FoldCase)
	}
	return 0
}

func growthOfAll(members []Match) int {
	n := 0
	for _, m := range members {
		n += growthOf(m)
	}
	return n
}

func growthOfText(t StringMatch, fold syntax.Flags) int {
	if regex, ok := t.(Regex); ok {
		return growthOfRegex(string(regex), fold)
	}
	return 0
}

func growthOfRegex(pattern string, fold syntax.Flags) int {
	tree, err := parseRegex(pattern, syntax.Perl|fold)
	if err != nil {
		return 0
	}
	return max(0, instructions(tree)-len(pattern))
}

// room is what is left of maxGrowth.
type room int

// take says why there is none left for the route, number i.
func (r *room) take(i int, def Route, growth int) error {
	if growth > int(*r) {
		return routeError(i, def, fmt.Errorf(
			"%w: with those of the routes before, repeats make more than %d instructions beyond what is written", errTooLarge, maxGrowth))
	}
	*r -= room(growth)
	return nil
}
