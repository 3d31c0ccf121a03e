package resolve

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// staleModel is a StaleResolver that looks at itself once a second.
type staleModel struct {
	policy        StalePolicy
	source, force model
	lost, held    time.Duration // how long; less than 0 is not
	waiting       bool          // for the first update after an error
	err           error
}

func (m *staleModel) doubt() bool {
	return len(m.force.list) > 0 && len(m.source.list) == 0
}

func (m *staleModel) believe() {
	m.force, m.lost, m.held, m.waiting = m.source.clone(), -1, -1, false
}

func (m *staleModel) take(s step) {
	if s.err != nil {
		m.waiting, m.lost, m.held, m.err = true, max(m.lost, 0), -1, s.err
		return
	}
	m.source.apply(s.update)
	if m.source.state == StatePending {
		return
	}
	if !m.waiting && m.held < 0 || !m.doubt() {
		m.believe()
		return
	}
	m.waiting = false
	m.held = max(m.held, 0)
}

func (m *staleModel) second() {
	if m.lost >= 0 {
		m.lost += time.Second
	}
	if m.held >= 0 {
		m.held += time.Second
	}
	switch {
	case m.held >= m.policy.Grace, m.held >= 0 && m.old():
		m.believe()
	case m.old():
		m.force = model{state: StateEmpty}
	}
}

func (m *staleModel) old() bool {
	return m.policy.MaxAge > 0 && m.lost >= m.policy.MaxAge && len(m.force.list) > 0
}

func (m *model) clone() model { return model{state: m.state, list: m.endpoints()} }

func checkStale(t *testing.T, p StalePolicy, steps []step) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		source := make(puppet)
		stale := ServeStale(source, p)
		c := consume(ctx, stale)
		m := staleModel{policy: p, lost: -1, held: -1}
		for n, s := range steps {
			if s.ended {
				continue
			}
			before := len(c.look().updates)
			for range int(s.wait / time.Second) {
				m.second()
			}
			if s.wait == 0 {
				source <- s.message
				m.take(s)
			}
			time.Sleep(s.wait)
			now := c.look()
			err = errors.Join(differs(&now.set, &m.force), m.compare(stale.Status()))
			if err == nil && s.wait == 0 && len(now.updates) > before+1 {
				err = errors.New("more than one update")
			}
			if err != nil {
				err = fmt.Errorf("step %d: %w", n, err)
				return
			}
		}
	})
	return err
}

func (m *staleModel) compare(list []StaleStatus) error {
	want := StaleStatus{
		Target: "web", State: m.force.state, Endpoints: len(m.force.list),
		Age: max(m.lost, 0), IsStale: m.held >= 0,
	}
	if m.lost >= 0 {
		want.Err = m.err
	}
	if len(list) != 1 || list[0] != want {
		return fmt.Errorf("kept is %v, not %v", list, want)
	}
	return nil
}

func TestServeStaleModel(t *testing.T) {
	steps := someSteps(1)
	rapid.Check(t, func(r *rapid.T) {
		p := StalePolicy{
			Grace:  rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second}).Draw(r, "grace"),
			MaxAge: rapid.SampledFrom([]time.Duration{0, 10 * time.Second, time.Minute}).Draw(r, "age"),
		}
		if err := checkStale(t, p, steps.Draw(r, "steps")); err != nil {
			r.Fatal(err)
		}
	})
}
