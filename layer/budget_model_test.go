package layer_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// TestBudgetModel drives a budget with random deposits, withdrawals and pauses,
// and compares it with a plain list of the events. The model is an upper bound, and
// also a lower bound up to the rounding of the budget.
func TestBudgetModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) budgetStep {
		return budgetStep{
			kind: rapid.IntRange(0, 3).Draw(rt, "kind"),
			n:    rapid.IntRange(1, 60).Draw(rt, "n"),
			wait: time.Duration(rapid.IntRange(1, int(1500*time.Millisecond)).Draw(rt, "wait")),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		ratio := rapid.SampledFrom([]float64{-1, 0.1, 0.2, 0.5, 1, 3}).Draw(rt, "ratio")
		perSecond := rapid.SampledFrom([]int{-1, 1, 3, 10}).Draw(rt, "per second")
		steps := rapid.SliceOfN(step, 1, 60).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(*testing.T) {
			m := &budgetModel{budget: layer.NewBudget(time.Second, ratio, perSecond)}
			m.ratio, m.reserve, m.looked = max(ratio, 0), float64(max(perSecond, 0)), time.Now()
			for _, s := range steps {
				if failure = m.step(s); failure != "" {
					return
				}
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

type budgetStep struct {
	kind, n int
	wait    time.Duration
}

type budgetModel struct {
	budget         *layer.Budget
	ratio, reserve float64
	deposits       []time.Time // when they were made
	dated          []time.Time // when, as the budget dates them
	withdrawn      []time.Time
	looked         time.Time // when it last looked at the clock
}

func (m *budgetModel) step(s budgetStep) string {
	switch s.kind {
	case 0:
		time.Sleep(s.wait)
	case 1:
		for range s.n {
			m.budget.Deposit()
			m.deposits = append(m.deposits, time.Now())
			if len(m.deposits)%8 == 0 {
				m.look()
			}
		}
	case 2:
		for range s.n {
			if problem := m.withdraw(); problem != "" {
				return problem
			}
		}
	case 3:
		before := m.budget.Balance()
		m.look()
		granted := 0
		for m.budget.Withdraw() {
			m.withdrawn = append(m.withdrawn, time.Now())
			granted++
		}
		if granted != before {
			return fmt.Sprintf("a balance of %d, and %d withdrawals", before, granted)
		}
	}
	return ""
}

func (m *budgetModel) look() {
	for len(m.dated) < len(m.deposits) {
		m.dated = append(m.dated, m.looked)
	}
	m.looked = time.Now()
}

func (m *budgetModel) withdraw() string {
	const bucket = time.Second / 64
	granted := m.budget.Withdraw()
	m.look()
	if !granted {
		least := m.ratio*float64(within(m.dated, time.Second-bucket)) + m.reserve
		if most := within(m.withdrawn, time.Second+bucket); float64(most)+1 <= least {
			return fmt.Sprintf("denied with %d withdrawn of %v", most, least)
		}
		return ""
	}
	m.withdrawn = append(m.withdrawn, time.Now())
	allowed := m.ratio*float64(within(m.deposits, time.Second)) + m.reserve
	if n := within(m.withdrawn, time.Second); float64(n) > allowed {
		return fmt.Sprintf("%d granted within the last ttl, of %v", n, allowed)
	}
	return ""
}

// within returns the number of events in the last d.
func within(events []time.Time, d time.Duration) (n int) {
	for _, at := range events {
		if time.Since(at) < d {
			n++
		}
	}
	return n
}
