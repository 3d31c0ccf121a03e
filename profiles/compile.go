package profiles

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"

	"github.com/gotower/gotower/layer"
)

// facts are the values of a request that conditions read. They are passed by
// value, because a pointer would move them to the heap.
type facts struct {
	method, path, query, authority string
	header                         layer.Header
}

// needs is the set of facts that a condition reads in addition to method and path.
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
	String() string // for explanations
}

// leaf is a condition on a request without members.
type leaf interface {
	compile(c *compiler) (matcher, error)
}

// compiledRoute is what serving a request needs of a Route.
type compiledRoute struct {
	match   matcher
	needs   needs
	info    *layer.Route // nil for a route without name and labels
	classes classifier
	repeats int // instructions that its expressions have by repeats
}

// compiler compiles the routes of one profile.
type compiler struct {
	drop    func(error) // receives an error for each part that is left out
	repeats int         // sum over the expressions so far
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

// add counts the repeats of a route. It returns an error beyond the limit.
func (c *compiler) add(repeats int) error {
	if c.repeats+repeats > maxRepeats {
		return fmt.Errorf("%w: repeats add more than %d instructions to the expressions of the profile", errTooLarge, maxRepeats)
	}
	c.repeats += repeats
	return nil
}

var errNoCondition = errors.New("no condition")

// compileMatch compiles a condition on requests. Invalid members of All and Any
// are left out.
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
	// maxExpression limits the bytes of one expression, and its instructions with
	// all repeats written out. A short "(a?){1000}" is 4000 instructions, and each
	// byte of a path may visit all of them.
	maxExpression = 10_000

	// maxRepeats limits the instructions that the expressions of a profile have in
	// addition to their own length. At the limit a path of 2 KB takes about a tenth
	// of a second at worst.
	maxRepeats = 20_000
)

var errTooLarge = errors.New("regular expression is too large")

// regex parses an expression within the limits.
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
		return nil, errTooLarge // add rejects the whole route
	}
	return tree, nil
}

// instructions returns an upper bound for the instructions of an expression with
// its repeats written out. Classes of characters count by their memory. The
// parser limits nested repeats to 1000, so that no sum overflows.
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
	default: // one instruction
		n++
	}
	return max(n, 1)
}

// quote quotes the beginning of a pattern for an error.
func quote(pattern string) string {
	const most = 200
	if len(pattern) > most {
		return strconv.Quote(pattern[:most]) + "…"
	}
	return strconv.Quote(pattern)
}
