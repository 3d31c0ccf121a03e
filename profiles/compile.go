package profiles

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp/syntax"
	"strconv"

	"github.com/gotower/gotower/layer"
)

// facts holds the request values that conditions read. Those other than method and path are set only
// if a condition needs them. It is passed by value, because a pointer would move it to the heap.
type facts struct {
	method, path, query, authority string
	header                         layer.Header
	source                         netip.Addr
}

// needs is the set of values that a condition reads in addition to method and path.
type needs uint8

// Each value is one bit, so that conditions can be combined.
const (
	needQuery needs = 1 << iota
	needAuthority
	needHeader
	needSource
)

// matcher is a compiled condition on a request.
type matcher interface {
	holds(f facts) bool // whether the request with the values f satisfies the condition
	needs() needs       // the values besides method and path that holds reads
	String() string     // the condition, for explanations
}

// leaf is a condition on requests that does not combine other conditions, such as [Path].
type leaf interface {
	compile() (matcher, error)
}

// compiledRoute is the compiled form of a Route.
type compiledRoute struct {
	match   matcher
	needs   needs        // those of match, computed once
	info    *layer.Route // nil if the route has no name and no labels
	classes classifier   // of the route's responses
}

// compileRoute compiles r, except for its classes. It leaves out invalid parts of conditions, and adds
// the mistakes to problems. It returns false if the whole condition is invalid.
func compileRoute(r *Route, problems *FieldErrors) (compiledRoute, bool) {
	match, err := compileMatch(r.Match, func(err error) { problems.add("Match", err) })
	// An error means that no valid condition is left.
	if problems.add("Match", err) {
		return compiledRoute{}, false
	}
	compiled := compiledRoute{match: match, needs: match.needs()}
	if r.Name != "" || len(r.Labels) > 0 {
		compiled.info = &layer.Route{Name: r.Name, Labels: r.Labels, Value: r.Value}
	}
	return compiled, true
}

// ValidateMatch returns the reason why a Router would leave out a route with the condition m, or nil.
// An invalid member of an All or Any is no such reason, because the Router leaves out only this member.
func ValidateMatch(m Match) error {
	_, err := compileMatch(m, func(error) {})
	return err
}

// errNoCondition is the error for a nil condition.
var errNoCondition = errors.New("no condition")

// compileMatch compiles a condition on requests. It leaves out each invalid member of an All or
// Any, and calls drop with the error.
func compileMatch(m Match, drop func(error)) (matcher, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		members := compileMembers(m, drop)
		// A single member needs no list.
		if len(members) == 1 {
			return members[0], nil
		}
		return allOf(members), nil
	case Any:
		members := compileMembers(m, drop)
		if len(members) == 1 {
			return members[0], nil
		}
		return anyOf(members), nil
	case Not:
		member, err := compileMatch(m.Match, drop)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return notOf{member}, nil
	case leaf:
		return m.compile()
	}
	return nil, fmt.Errorf("%T is not a condition on a request", m)
}

// compileMembers compiles the members of an All or Any. It leaves out each invalid one, and calls drop
// with the error.
func compileMembers(members []Match, drop func(error)) []matcher {
	compiled := make([]matcher, 0, len(members))
	for _, m := range members {
		// An invalid member is left out, and the others still apply.
		member, err := compileMatch(m, drop)
		if err != nil {
			drop(fmt.Errorf("member of a condition: %w", err))
			continue
		}
		compiled = append(compiled, member)
	}
	return compiled
}

// maxExpression is how long a regular expression may be in bytes, and also how many instructions
// it may compile to with all repeats written out. For example, "(a?){1000}" takes 4000
// instructions. The number is limited, because each byte of a path may visit all instructions.
const maxExpression = 10_000

// errTooLarge is the error for a regular expression whose matching could take too long.
var errTooLarge = errors.New("regular expression is too large")

// parseRegex parses a regular expression. It returns an error if the expression is invalid, or if
// its length or its number of instructions is above maxExpression.
func parseRegex(pattern string, flags syntax.Flags) (*syntax.Regexp, error) {
	if len(pattern) > maxExpression {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errTooLarge, len(pattern), maxExpression)
	}
	tree, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, err
	}
	// Each byte of a path may visit all instructions, so their number is a limit of the time.
	if n := instructions(tree); n > maxExpression {
		return nil, fmt.Errorf("%w: %d instructions with its repeats written out, at most %d", errTooLarge, n, maxExpression)
	}
	return tree, nil
}

// instructions returns an upper bound for how many instructions an expression takes with its
// repeats written out. It counts a large character class as several instructions, because such a
// class uses more memory. The result cannot overflow, because the parser limits nested repeats to
// 1000.
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
	// The counts of a repeat multiply the instructions.
	case syntax.OpRepeat:
		switch low, most := tree.Min, tree.Max; {
		case most >= 0:
			n = most*n + most - low
		case low == 0:
			n += 2
		default:
			n = low*n + 1
		}
	default:
		n++
	}
	return max(n, 1)
}

// quote quotes a pattern for an error, and cuts it to 200 bytes.
func quote(pattern string) string {
	const most = 200
	if len(pattern) > most {
		return strconv.Quote(pattern[:most]) + "…"
	}
	return strconv.Quote(pattern)
}
