package profiles

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gotower/gotower/layer"
)

// facts are what conditions know of a request. They are handed on by value: a
// pointer to them would have them live on the heap.
type facts struct {
	method, path, query, authority string
	header                         layer.Header
}

// needs says which facts a condition looks at beyond method and path, which
// all have.
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
	String() string // what is asked for
}

var errNoCondition = errors.New("no condition")

// compileMatch returns the condition made ready, or why it is invalid. Members
// that are left out are told to drop.
func compileMatch(m Match, drop func(error)) (matcher, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		return allOf(compileMembers(m, drop)).simplify(), nil
	case Any:
		return anyOf(compileMembers(m, drop)).simplify(), nil
	case Not:
		member, err := compileMatch(m.Match, drop)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return notOf{member}, nil
	case leaf:
		return m.compile()
	}
	return nil, fmt.Errorf("%T is no condition on a request", m)
}

// validate returns the error of compileMatch without what that costs: members
// that are invalid are left out, and an expression that was parsed compiles.
func validate(m Match) error {
	switch m := m.(type) {
	case All, Any:
		return nil
	case Not:
		if err := validate(m.Match); err != nil {
			return fmt.Errorf("not: %w", err)
		}
		return nil
	case Path:
		_, err := m.parse()
		return err
	}
	_, err := compileMatch(m, func(error) {})
	return err
}

// leaf is a Match without members, on a request.
type leaf interface {
	compile() (matcher, error)
}

func compileMembers(members []Match, drop func(error)) []matcher {
	compiled := make([]matcher, 0, len(members))
	for _, m := range members {
		c, err := compileMatch(m, drop)
		if err != nil {
			drop(fmt.Errorf("member of a condition: %w", err))
			continue
		}
		compiled = append(compiled, c)
	}
	return compiled
}

type (
	allOf []matcher
	anyOf []matcher
	notOf struct{ matcher }
)

func (a allOf) simplify() matcher {
	if len(a) == 1 {
		return a[0]
	}
	return a
}

func (a allOf) holds(f facts) bool {
	for _, m := range a {
		if !m.holds(f) {
			return false
		}
	}
	return true
}

func (a allOf) needs() needs   { return needsOf(a) }
func (a allOf) String() string { return "all" + list(a) }

func (a anyOf) simplify() matcher {
	if len(a) == 1 {
		return a[0]
	}
	return a
}

func (a anyOf) holds(f facts) bool {
	for _, m := range a {
		if m.holds(f) {
			return true
		}
	}
	return false
}

func (a anyOf) needs() needs   { return needsOf(a) }
func (a anyOf) String() string { return "any" + list(a) }

func (n notOf) holds(f facts) bool { return !n.matcher.holds(f) }
func (n notOf) String() string     { return "not (" + n.matcher.String() + ")" }

func needsOf(members []matcher) needs {
	var n needs
	for _, m := range members {
		n |= m.needs()
	}
	return n
}

func list(members []matcher) string {
	texts := make([]string, len(members))
	for i, m := range members {
		texts[i] = m.String()
	}
	return " (" + strings.Join(texts, ", ") + ")"
}
