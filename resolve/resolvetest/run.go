package resolvetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gotower/gotower/resolve"
)

// Run tests the subject with each of [Checks], as sub-tests of t.
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
	Claim string // what a resolver must do, in words

	needs []need
	run   func(*rig) error
}

// Checks returns all there are, in the order in which they run.
func Checks() []Check {
	return slices.Concat(answers(), changes(), streams(), ends(), outages())
}

// need is something that not every subject can do.
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

// missing names the field that is nil, if it is.
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

// try runs the check on a resolver of its own. It returns why it was skipped,
// or what the resolver did wrong.
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

// rig is what a check works with.
type rig struct {
	Subject
	Source
	resolver resolve.Resolver
	watches  []*watch
}

// close ends all streams. They must end.
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

// set makes the numbered endpoints all that the first target has.
func (g *rig) set(numbers ...int) { g.Set(g.target(), g.endpoints(numbers...)...) }
