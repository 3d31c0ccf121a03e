package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/stream"
)

// keepModel is a StaleResolver that looks at itself once a second.
type keepModel struct {
	policy      StalePolicy
	said, force model
	lost, held  time.Duration // how long; less than 0 is not
	away        time.Duration // since the first error after the last answer, while waiting
	waiting     bool          // for the first update after an error
	err         error
}

func (m *keepModel) doubt() bool {
	had, has := len(m.force.list), len(m.said.list)
	return had > 0 && (has == 0 || m.policy.MaxLoss > 0 && float64(had-has)/float64(had) > m.policy.MaxLoss)
}

func (m *keepModel) believe() {
	m.force, m.lost, m.held, m.waiting = m.said.clone(), -1, -1, false
}

func (m *keepModel) take(s step) {
	if s.err != nil {
		if !m.waiting {
			m.away = 0
		}
		m.waiting, m.lost, m.err = true, max(m.lost, 0), s.err
		if !errors.Is(s.err, stream.ErrLimit) {
			m.held = -1
		}
		return
	}
	m.said.apply(s.update)
	if m.said.state == StatePending {
		return
	}
	if !m.waiting && m.held < 0 || !m.doubt() {
		m.believe()
		return
	}
	m.waiting = false
	m.held = max(m.held, 0)
	m.grace() // it may have passed before a stream of ours that ended was back
}

func (m *keepModel) second() {
	if m.lost >= 0 {
		m.lost += time.Second
	}
	if m.held >= 0 {
		m.held += time.Second
	}
	m.away += time.Second
	if m.old() && m.held >= 0 {
		waiting := m.waiting
		if m.believe(); waiting {
			m.lost, m.waiting = m.away, true
		}
	}
	if m.old() {
		m.force = model{state: StateEmpty}
	}
	m.grace()
}

func (m *keepModel) old() bool {
	return m.policy.MaxAge > 0 && m.lost >= m.policy.MaxAge && len(m.force.list) > 0
}

func (m *keepModel) grace() {
	if m.held >= m.policy.Grace && !m.waiting {
		m.believe()
	}
}

func (m *model) clone() model { return model{state: m.state, list: m.endpoints()} }

func checkKeep(t *testing.T, p StalePolicy, steps []step) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		source := make(puppet)
		keeper := ServeStale(source, p)
		c := consume(ctx, keeper)
		m := keepModel{policy: p, lost: -1, held: -1}
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
			err = errors.Join(differs(&now.set, &m.force), m.compare(keeper.Status()))
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

func (m *keepModel) compare(list []StaleStatus) error {
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

func TestKeepLastGoodIsItsModel(t *testing.T) {
	steps := someSteps(1)
	rapid.Check(t, func(r *rapid.T) {
		p := StalePolicy{
			Grace:   rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second}).Draw(r, "grace"),
			MaxLoss: rapid.SampledFrom([]float64{0, 0.5}).Draw(r, "loss"),
			MaxAge:  rapid.SampledFrom([]time.Duration{0, 10 * time.Second, time.Minute}).Draw(r, "age"),
		}
		if err := checkKeep(t, p, steps.Draw(r, "steps")); err != nil {
			r.Fatal(err)
		}
	})
}

// An answer that was held back until its own stream ended is no younger than that.
func TestKeepLastGoodPassesOnWhatNoStreamSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		source := make(puppet)
		keeper := ServeStale(source, StalePolicy{Grace: 30 * time.Second, MaxLoss: 0.5, MaxAge: time.Minute})
		c := consume(ctx, keeper)
		says := func(hosts ...byte) {
			u := Update{Kind: Replace}
			for _, n := range hosts {
				u.Endpoints = append(u.Endpoints, Endpoint{ID: ID{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80)}})
			}
			source <- message{update: u}
		}
		requireKept := func(want StaleStatus) {
			t.Helper()
			c.look()
			want.Target = "web"
			if got := keeper.Status(); len(got) != 1 || got[0] != want {
				t.Fatalf("kept is %v, not %v", got, want)
			}
		}
		says(1, 2, 3, 4)
		source <- message{err: errLost}
		time.Sleep(40 * time.Second)
		says(1)
		time.Sleep(10 * time.Second)
		source <- message{err: stream.ErrLimit}
		time.Sleep(9 * time.Second)
		requireKept(StaleStatus{State: StateExists, Endpoints: 4, Age: 59 * time.Second, IsStale: true, Err: stream.ErrLimit})
		time.Sleep(2 * time.Second)
		requireKept(StaleStatus{State: StateExists, Endpoints: 1, Age: 11 * time.Second, Err: stream.ErrLimit})
		time.Sleep(48 * time.Second)
		requireKept(StaleStatus{State: StateExists, Endpoints: 1, Age: 59 * time.Second, Err: stream.ErrLimit})
		time.Sleep(2 * time.Second)
		requireKept(StaleStatus{State: StateEmpty, Age: 61 * time.Second, Err: stream.ErrLimit})
		says(1, 2)
		requireKept(StaleStatus{State: StateExists, Endpoints: 2})
	})
}

// A loss of just MaxLoss is believed, whichever share that is.
func TestKeepLastGoodBelievesALossOfMaxLoss(t *testing.T) {
	says := func(s *Set, n int) {
		u := Update{Kind: Replace}
		for i := range n {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
			u.Endpoints = append(u.Endpoints, Endpoint{ID: ID{Addr: addr}})
		}
		s.Apply(u)
	}
	for percent := 1; percent < 100; percent++ {
		w := kept{StalePolicy: StalePolicy{Grace: time.Second, MaxLoss: float64(percent) / 100}}
		says(&w.force, 100)
		says(&w.said, 100-percent)
		if w.doubtful() {
			t.Errorf("a loss of %d %% is doubtful", percent)
		}
		if says(&w.said, 99-percent); !w.doubtful() {
			t.Errorf("a loss of more than %d %% is not", percent)
		}
	}
}

// The memory is bounded: what was left first is forgotten first.
func TestMemoryIsBounded(t *testing.T) {
	var m memory
	for _, target := range []string{"a", "b", "c", "d", "b", "e"} {
		m.put(memo{target: target, endpoints: make([]Endpoint, 30_000), left: time.Now()}, time.Hour)
	}
	var known []string
	for _, target := range []string{"a", "b", "c", "d", "e"} {
		if len(m.get(target, time.Hour).endpoints) > 0 {
			known = append(known, target)
		}
	}
	if got := fmt.Sprint(known, m.endpoints, m.order.Len()); got != "[b d e] 90000 3" {
		t.Fatal(got)
	}
	m.put(memo{target: "f", left: time.Now().Add(time.Hour)}, time.Hour)
	if len(m.byTarget) != 1 || m.endpoints != 0 {
		t.Fatalf("what is too old stays: %d", m.endpoints)
	}
}
