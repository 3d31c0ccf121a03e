package resolvetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gotower/gotower/resolve"
)

// Run runs each of [Checks] as a sub-test of t.
func Run(t *testing.T, s Subject) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			skipped, err := c.try(t, s)
			if skipped != "" {
				t.Skip(skipped)
			}
			if err != nil {
				t.Errorf("a resolver must: %s\n%v", c.Claim, err)
			}
		})
	}
}

// Check is one part of the suite.
type Check struct {
	Name  string // the name of the sub-test
	Claim string // the requirement for a resolver, as an imperative clause

	needs []need
	run   func(*rig)
}

// Checks returns all checks in their order.
func Checks() []Check {
	return slices.Concat(answers(), changes(), streams(), ends(), outages())
}

// need names a function of a Subject or Source that may be nil. A check that needs the function
// is skipped if it is nil.
type need string

// The values are the owner and the name of the function: see missing.
const (
	needEmpty     need = "Source.Empty"
	needAbsent    need = "Source.DoesNotExist"
	needSend      need = "Source.Send"
	needInterrupt need = "Source.Interrupt"
	needReject    need = "Source.Reject"
	needRelabel   need = "Subject.Relabel"
	needRekey     need = "Subject.Rekey"
)

// missing reports whether the function that n names is nil in s or src.
func (n need) missing(s Subject, src Source) bool {
	// The value of n is "Owner.Field", which reflection looks up.
	owner, name, _ := strings.Cut(string(n), ".")
	if owner == "Source" {
		return reflect.ValueOf(src).FieldByName(name).IsNil()
	}
	return reflect.ValueOf(s).FieldByName(name).IsNil()
}

// try runs the check on a new resolver. It returns the reason why the check was skipped, or
// the violation that it found.
func (c Check) try(t testing.TB, s Subject) (skipped string, err error) {
	s = s.withDefaults()
	r, src := s.New(t)
	for _, n := range c.needs {
		if n.missing(s, src) {
			return fmt.Sprintf("not tested (%s is nil): %s", n, c.Claim), nil
		}
	}
	g := &rig{Subject: s, Source: src, resolver: r}
	// Each check starts with a new resolver and source, so that checks do not depend on each other.
	c.run(g)
	// Streams that the check has left open must end too.
	return "", errors.Join(g.err, g.close())
}

// rig holds the resolver, the streams and the first violation in one run of a check.
type rig struct {
	Subject
	Source
	resolver resolve.Resolver
	watches  []*watch // the streams that the check has opened

	during string // the current part of the check, for the error of a violation; may be empty
	err    error  // the first violation; after it, nothing more is checked
}

// failf records a violation, unless an earlier one was recorded.
func (g *rig) failf(format string, args ...any) { g.fail(fmt.Errorf(format, args...)) }

// fail records err as a violation, unless err is nil or an earlier one was recorded.
func (g *rig) fail(err error) {
	switch {
	// The first violation is kept. What follows is often only its consequence.
	case g.err != nil:
	case err != nil && g.during != "":
		g.err = fmt.Errorf("%s: %w", g.during, err)
	default:
		g.err = err
	}
}

// close ends all streams of the check and waits for their ends.
func (g *rig) close() error {
	var errs []error
	for _, w := range g.watches {
		errs = append(errs, w.close())
	}
	g.watches = nil
	return errors.Join(errs...)
}

// target returns the name of the first target, which most checks use.
func (g *rig) target() string { return g.Targets[0] }

// set replaces the first target's endpoints with the test endpoints that have the given numbers:
// see Endpoint of [Subject].
func (g *rig) set(numbers ...int) { g.Set(g.target(), g.endpoints(numbers...)...) }
