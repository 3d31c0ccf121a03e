package profiles

import (
	"errors"
	"fmt"
	"strings"
)

// Match is a condition: a tree whose leaves are [Path] and [Method] where it
// is about requests, and [Status] where it is about responses. [All], [Any]
// and [Not] join leaves of either kind; a leaf of the other kind is invalid.
//
// Invalid members of All and Any are left out of them. A Not of something
// invalid is invalid itself. A tree must not contain itself.
type Match interface {
	isMatch()
}

// The kinds of Match.
type (
	// All holds if every member does. An empty All holds for every request;
	// for responses it is invalid.
	All []Match

	// Any holds if one of its members does. An empty Any holds for no request;
	// for responses it is invalid.
	Any []Match

	// Not holds if its member does not.
	Not struct{ Match Match }

	// Path is a regular expression for the path of a request, without the
	// query. Space around it is cut off, and it is anchored at both ends as
	// linkerd does it: a '^' is put in front if there is none, and a '$' at
	// the end if there is none, without a group around what stands between.
	// So "/a|/b" means "^/a|/b$": begins with /a, or ends with /b; write
	// "(/a|/b)" for one of the two.
	//
	// The dialect is that of package regexp. It differs from linkerd's in what
	// paths rarely have: \d, \w and \s are ASCII only, "&&" and "--" in a
	// class have no meaning, and a repeat count is at most 1000.
	Path string

	// Method is the method of a request, exactly as sent. It must be a token
	// as HTTP defines it.
	Method string

	// Status holds if the status of a response is from Min to Max, both
	// included. Both must be from 100 to 999; there is no open end.
	Status struct{ Min, Max int }
)

func (All) isMatch()    {}
func (Any) isMatch()    {}
func (Not) isMatch()    {}
func (Path) isMatch()   {}
func (Method) isMatch() {}
func (Status) isMatch() {}

// matcher is a compiled condition on a request. It takes strings rather than a
// pointer to some view of the request, which would have to live on the heap.
type matcher func(method, path string) bool

var errNoCondition = errors.New("no condition")

// compileMatch returns the condition as a function, or why it is invalid.
// Members that are left out are told to drop.
func compileMatch(m Match, drop func(error)) (matcher, error) {
	switch m := m.(type) {
	case nil:
		return nil, errNoCondition
	case All:
		return matchAll(compileMembers(m, drop)), nil
	case Any:
		return matchAny(compileMembers(m, drop)), nil
	case Not:
		f, err := compileMatch(m.Match, drop)
		if err != nil {
			return nil, fmt.Errorf("not: %w", err)
		}
		return func(method, path string) bool { return !f(method, path) }, nil
	case Path:
		return m.compile()
	case Method:
		return m.compile()
	}
	return nil, fmt.Errorf("%T is no condition on a request", m)
}

func compileMembers(members []Match, drop func(error)) []matcher {
	fs := make([]matcher, 0, len(members))
	for _, m := range members {
		f, err := compileMatch(m, drop)
		if err != nil {
			drop(fmt.Errorf("member of a condition: %w", err))
			continue
		}
		fs = append(fs, f)
	}
	return fs
}

func matchAll(fs []matcher) matcher {
	if len(fs) == 1 {
		return fs[0]
	}
	return func(method, path string) bool {
		for _, f := range fs {
			if !f(method, path) {
				return false
			}
		}
		return true
	}
}

func matchAny(fs []matcher) matcher {
	if len(fs) == 1 {
		return fs[0]
	}
	return func(method, path string) bool {
		for _, f := range fs {
			if f(method, path) {
				return true
			}
		}
		return false
	}
}

func (m Method) compile() (matcher, error) {
	want := string(m)
	if want == "" {
		return nil, errors.New("method is empty")
	}
	for i := range len(want) {
		if c := want[i]; !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return nil, fmt.Errorf("method %q is not a token", want)
		}
	}
	return func(method, _ string) bool { return method == want }, nil
}
