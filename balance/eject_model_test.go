package balance_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/resolve"
)

// accused is what should be known of one endpoint.
type accused struct {
	*server
	state string // ready, unready, ejected
	bad   bool   // it fails
	row   int
	times int
	back  time.Time
	until time.Time // as the balancer says, once that was found to be right
}

// trial is a jury that is simple because nothing happens at once.
type trial struct {
	*pool
	policy                      balance.OutlierDetection
	all                         []*accused // the endpoints, in any order
	out                         []*accused // the ejected ones, in the order in which they went
	next                        int
	ejections, spared, recalled uint64
}

func (m *trial) count(state string) (n int) {
	for _, a := range m.all {
		if a.state == state {
			n++
		}
	}
	return n
}

func (m *trial) floor() int { return max(1, int(math.Ceil(m.policy.MinReady*float64(len(m.all))))) }

func (m *trial) returned(a *accused, state string) {
	a.state, a.row, a.back = state, 0, time.Now()
	m.out = slices.DeleteFunc(m.out, func(o *accused) bool { return o == a })
}

func (m *trial) recall() {
	for len(m.out) > 0 && m.count("ready") < m.floor() {
		m.returned(m.out[0], "ready")
		m.recalled++
	}
}

// call sends one request, and lets the model hear who failed and who refused.
func (m *trial) call(rt *rapid.T) {
	type before struct{ calls, refused int64 }
	was := make(map[*accused]before)
	for _, a := range m.all {
		was[a] = before{a.calls.Load(), a.refused.Load()}
	}
	could := m.count("ready") + len(m.out)
	err := m.send(context.Background())
	refused := err != nil && !errors.Is(err, errBroken)
	var refusers []*accused
	for _, a := range m.all {
		if a.refused.Load() > was[a].refused {
			refusers = append(refusers, a)
		}
	}
	for tried := len(refusers); tried > 0; tried-- {
		i := slices.IndexFunc(refusers, func(a *accused) bool { return a.state == "ready" })
		require.GreaterOrEqual(rt, i, 0, "it asked one that was not ready")
		refusers[i].state = "unready"
		refusers = slices.Delete(refusers, i, i+1)
		m.recall()
	}
	for _, a := range m.all {
		if a.calls.Load() > was[a].calls {
			require.False(rt, refused)
			require.Equal(rt, "ready", a.state, "what is out gets nothing")
			m.answered(a)
			return
		}
	}
	require.True(rt, refused)
	tried := 0
	for _, a := range m.all {
		tried += int(a.refused.Load() - was[a].refused)
	}
	require.True(rt, tried == could || tried == 5, "refused, and %d of %d were tried", tried, could)
}

func (m *trial) answered(a *accused) {
	if !a.bad {
		a.row = 0
		return
	}
	if a.row++; a.row < m.policy.ConsecutiveFailures {
		return
	}
	a.row = 0
	if m.count("ready")-1 < m.floor() {
		m.spared++
		return
	}
	well := int(time.Since(a.back)/(10*time.Second)) - 1
	most := int((m.policy.MaxEjectionTime + m.policy.BaseEjectionTime - 1) / m.policy.BaseEjectionTime)
	a.state, a.times = "ejected", min(max(a.times-max(well, 0), 0)+1, most)
	a.until = time.Time{}
	m.out = append(m.out, a)
	m.ejections++
}

// settle is what happens in the background as time goes by.
func (m *trial) settle() {
	synctest.Wait()
	for _, a := range m.all {
		if a.state == "unready" && a.isOpen.Load() {
			a.state = "ready"
		}
	}
}

func (m *trial) update(rt *rapid.T) {
	c := change{State: resolve.StateExists}
	for range rapid.IntRange(0, 3).Draw(rt, "added") {
		a := &accused{server: newServer(m.next), state: "ready", back: m.began()}
		a.fail(func() bool { return a.bad })
		if rapid.Bool().Draw(rt, "shut") {
			a.state = "unready"
			a.open(false)
		}
		m.next++
		m.all = append(m.all, a)
		c.Added = append(c.Added, a.endpoint())
	}
	m.all = slices.DeleteFunc(m.all, func(a *accused) bool {
		gone := rapid.IntRange(0, 5).Draw(rt, "gone") == 0
		if gone {
			c.Removed = append(c.Removed, a.endpoint())
			m.out = slices.DeleteFunc(m.out, func(o *accused) bool { return o == a })
		}
		return gone
	})
	m.recall()
	m.apply(c)
}

func (m *trial) began() time.Time { return time.Time{}.Add(1) } // long ago: nothing to forgive

func (m *trial) check(rt *rapid.T) {
	m.settle()
	states := make(map[string]balance.EndpointState)
	for _, s := range m.Snapshot() {
		states[s.ID.Addr.String()] = s
	}
	for _, a := range m.all {
		s := states[a.addr.String()]
		require.Equal(rt, a.state, s.State, "%v", a.addr)
		if a.state != "ejected" {
			continue
		}
		why, ok := s.Reason.(*balance.EjectedError)
		require.True(rt, ok)
		require.Equal(rt, a.times, why.Times)
		require.Equal(rt, fmt.Sprintf("%d failures in a row", m.policy.ConsecutiveFailures), why.Cause)
		if term := min(m.policy.BaseEjectionTime*time.Duration(a.times), m.policy.MaxEjectionTime); a.until.IsZero() {
			a.until = why.Until
			require.LessOrEqual(rt, time.Until(a.until), term)
			require.GreaterOrEqual(rt, time.Until(a.until), term*9/10)
		}
		require.Equal(rt, a.until, why.Until)
	}
	d := m.Describe().State
	require.Equal(rt, m.ejections, d.Get("ejections"))
	require.Equal(rt, m.spared, d.Get("spared"))
	require.Equal(rt, m.recalled, d.Get("recalled"))
	require.Equal(rt, len(m.out), d.Get("ejected"))
	if len(m.out) > 0 {
		require.GreaterOrEqual(rt, m.count("ready"), m.floor(), "the floor")
	}
}

// pass lets time go by until the next one is to come back, or for as long as is
// drawn if that is less.
func (m *trial) pass(rt *rapid.T) {
	d := time.Duration(rapid.IntRange(1, 40).Draw(rt, "seconds")) * time.Second
	for _, a := range m.out {
		d = min(d, time.Until(a.until))
	}
	time.Sleep(d)
	for _, a := range slices.Clone(m.out) {
		if time.Until(a.until) <= 0 {
			m.returned(a, map[bool]string{true: "ready", false: "unready"}[a.isOpen.Load()])
		}
	}
	m.settle()
}

func (m *trial) one(rt *rapid.T) *accused {
	if len(m.all) == 0 {
		rt.Skip("no endpoint")
	}
	return m.all[rapid.IntRange(0, len(m.all)-1).Draw(rt, "endpoint")]
}

// Whoever fails, refuses, comes and goes in whatever order, the jury does what
// the model does: the floor holds, nobody goes without cause, and everybody
// comes back in time.
func TestJuryAgainstAModel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer synctest.Wait()
			defer cancel()
			e := balance.OutlierDetection{
				ConsecutiveFailures: rapid.IntRange(1, 3).Draw(rt, "consecutive"), BaseEjectionTime: 20 * time.Second, MaxEjectionTime: 70 * time.Second,
				MinReady: rapid.SampledFrom([]float64{0.125, 0.5, 0.75, 1}).Draw(rt, "floor"),
			}
			m := &trial{pool: newPoolIn(ctx, inTurn(e)...), policy: e}
			rt.Repeat(map[string]func(*rapid.T){
				"update": m.update,
				"call":   m.call,
				"calls": func(rt *rapid.T) {
					for range 20 {
						m.call(rt)
						m.settle()
					}
				},
				"break": func(rt *rapid.T) { m.one(rt).bad = true },
				"mend":  func(rt *rapid.T) { m.one(rt).bad = false },
				"shut":  func(rt *rapid.T) { m.one(rt).open(false) },
				"open":  func(rt *rapid.T) { m.one(rt).open(true) },
				"pass":  m.pass,
				"":      m.check,
			})
			for len(m.out) > 0 {
				m.pass(rt)
				m.check(rt)
			}
		})
	})
}
