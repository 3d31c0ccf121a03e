package resolvetest

import (
	"errors"
	"fmt"
	"slices"
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
	Name  string // of the sub-test
	Claim string // what a resolver must do

	needs []need
	run   func(*rig) error
}

// Checks returns all checks in their order.
func Checks() []Check {
	return slices.Concat(answers(), changes(), streams(), ends(), outages())
}

// need is a function that a subject may lack.
type need int

const (
	needEmpty need = iota
	needAbsent
	needSend
	needInterrupt
	needReject
	needRelabel
	needRekey
)

// missing returns the name of the field and whether it is nil.
func (n need) missing(s Subject, src Source) (field string, missing bool) {
	switch n {
	case needEmpty:
		return "Source.Empty", src.Empty == nil
	case needAbsent:
		return "Source.DoesNotExist", src.DoesNotExist == nil
	case needSend:
		return "Source.Send", src.Send == nil
	case needInterrupt:
		return "Source.Interrupt", src.Interrupt == nil
	case needReject:
		return "Source.Reject", src.Reject == nil
	case needRelabel:
		return "Subject.Relabel", s.Relabel == nil
	default:
		return "Subject.Rekey", s.Rekey == nil
	}
}

// try runs the check on a new resolver. It returns why it was skipped, or the violation.
func (c Check) try(t testing.TB, s Subject) (skipped string, err error) {
	s = s.withDefaults()
	r, src := s.New(t)
	for _, n := range c.needs {
		if field, missing := n.missing(s, src); missing {
			return fmt.Sprintf("not tested (%s is nil): %s", field, c.Claim), nil
		}
	}
	g := &rig{Subject: s, Source: src, resolver: r}
	return "", errors.Join(c.run(g), g.close())
}

// rig is the state of one check.
type rig struct {
	Subject
	Source
	resolver resolve.Resolver
	watches  []*watch
}

// close ends all streams and waits for them.
func (g *rig) close() error {
	var errs []error
	for _, w := range g.watches {
		errs = append(errs, w.close())
	}
	g.watches = nil
	return errors.Join(errs...)
}

// target returns the first target.
func (g *rig) target() string { return g.Targets[0] }

// set replaces the endpoints of the first target by the numbered ones.
func (g *rig) set(numbers ...int) { g.Set(g.target(), g.endpoints(numbers...)...) }
