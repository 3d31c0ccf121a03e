package profiles

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"

	"github.com/gotower/gotower/layer"
)

// facts are the values of a request that conditions read. They are passed by value,
// because a pointer would move them to the heap.
type facts struct {
	method, path, query, authority string
	header                         layer.Header
}

// needs is the set of values that a condition reads in addition to method and path.
type needs uint8

const (
	needQuery needs = 1 << iota
	needAuthority
	needHeader
)

// matcher is a compiled condition on a request.
type matcher interface {
	holds(f facts) bool
	needs() needs
	String() string // the condition, for explanations
}

// leaf is implemented by the conditions on requests that have no members.
type leaf interface {
	compile(c *compiler) (matcher, error)
}

// compiledRoute is the compiled form of a Route.
type compiledRoute struct {
	match   matcher
	needs   needs
	info    *layer.Route // nil without a name and labels
	classes classifier
	repeats int // instructions that repeats add to its expressions
}

// compiler compiles the routes of one profile within the limits of its expressions.
type compiler struct {
	drop    func(error) // called with an error for each part that is left out
	repeats int         // instructions that repeats have added so far
}

// route compiles the route at position i of a profile.
func (c *compiler) route(i int, r Route) (compiledRoute, error) {
	inRoute := &compiler{drop: func(err error) { c.drop(routeError(i, r, err)) }}
	match, err := compileMatch(r.Match, inRoute)
	if err != nil {
		return compiledRoute{}, routeError(i, r, err)
	}
	compiled := compiledRoute{match: match, needs: match.needs(), classes: compileClasses(r.Classes, inRoute), repeats: inRoute.repeats}
	if r.Name != "" || len(r.Labels) > 0 {
		compiled.info = &layer.Route{Name: r.Name, Labels: r.Labels}
	}
	if err := c.add(compiled.repeats); err != nil {
		return compiledRoute{}, routeError(i, r, err)
	}
	return compiled, nil
}

// add adds the repeats of a route to the sum. It returns an error above the limit.
func (c *compiler) add(repeats int) error {
	if c.repeats+repeats > maxRepeats {
		return fmt.Errorf("%w: repeats add more than %d instructions to the expressions of the profile", errTooLarge, maxRepeats)
	}
	c.repeats += repeats
	return nil
}

var errNoCondition = errors.New("no condition")

// compileMatch compiles a condition on requests. Invalid members of All and Any are left out.
func compileMatch(m Match, c *compiler) (matcher, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		members := compileMembers(m, c)
		if len(members) == 1 {
			return members[0], nil
		}
		return allOf(members), nil
	case Any:
		members := compileMembers(m, c)
		if len(members) == 1 {
			return members[0], nil
		}
		return anyOf(members), nil
	case Not:
		member, err := compileMatch(m.Match, c)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return notOf{member}, nil
	case leaf:
		return m.compile(c)
	}
	return nil, fmt.Errorf("%T is not a condition on a request", m)
}

func compileMembers(members []Match, c *compiler) []matcher {
	compiled := make([]matcher, 0, len(members))
	for _, m := range members {
		member, err := compileMatch(m, c)
		if err != nil {
			c.drop(fmt.Errorf("member of a condition: %w", err))
			continue
		}
		compiled = append(compiled, member)
	}
	return compiled
}

const (
	// maxExpression limits the bytes of one expression, and its instructions with all
	// repeats written out. "(a?){1000}" has 4000 instructions, and each byte of a path
	// may visit all of them.
	maxExpression = 10_000

	// maxRepeats limits the instructions that repeats add to the expressions of a
	// profile. At the limit, a path of 2 KB takes at most about 0.1 s.
	maxRepeats = 20_000
)

var errTooLarge = errors.New("regular expression is too large")

// regex parses an expression and checks the limits.
func (c *compiler) regex(pattern string, flags syntax.Flags) (*syntax.Regexp, error) {
	if len(pattern) > maxExpression {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errTooLarge, len(pattern), maxExpression)
	}
	tree, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, err
	}
	n := instructions(tree)
	if n > maxExpression {
		return nil, fmt.Errorf("%w: %d instructions with its repeats written out, at most %d", errTooLarge, n, maxExpression)
	}
	if c.repeats += max(0, n-len(pattern)); c.repeats > maxRepeats {
		return nil, errTooLarge // the whole route is rejected
	}
	return tree, nil
}

// instructions returns an upper bound for the number of instructions of an expression
// with its repeats written out. A class of characters counts by its memory. The result
// cannot overflow, because the parser limits nested repeats to 1000.
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
		switch least, most := tree.Min, tree.Max; {
		case most >= 0:
			n = most*n + most - least
		case least == 0:
			n += 2
		default:
			n = least*n + 1
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
