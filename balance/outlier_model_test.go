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

// modelEndpoint is the expected state of one endpoint.
type modelEndpoint struct {
	*server
	state    string // ready, unready, ejected
	bad      bool   // it fails
	row      int
	times    int
	returned time.Time
	until    time.Time // of the balancer, after it was checked
}

// detectionModel is outlier detection without concurrency.
type detectionModel struct {
	*pool
	policy             balance.OutlierDetection
	all                []*modelEndpoint
	out                []*modelEndpoint // the ejected ones
	next               int
	ejections, skipped uint64
}

func (m *detectionModel) count(state string) (n int) {
	for _, a := range m.all {
		if a.state == state {
			n++
		}
	}
	return n
}

func (m *detectionModel) minReady() int {
	return max(1, int(math.Ceil(m.policy.MinReady*float64(len(m.all)))))
}

func (m *detectionModel) readmit(a *modelEndpoint, state string) {
	a.state, a.row, a.returned = state, 0, time.Now()
	m.out = slices.DeleteFunc(m.out, func(o *modelEndpoint) bool { return o == a })
}

func (m *detectionModel) readmitAll() {
	if m.count("ready") > 0 {
		return
	}
	for len(m.out) > 0 {
		m.readmit(m.out[0], "ready")
	}
}

// call sends one request and updates the model.
func (m *detectionModel) call(rt *rapid.T) {
	type before struct{ calls, refused int64 }
	was := make(map[*modelEndpoint]before)
	for _, a := range m.all {
		was[a] = before{a.calls.Load(), a.refused.Load()}
	}
	could := m.count("ready") + len(m.out)
	err := m.send(context.Background())
	refused := err != nil && !errors.Is(err, errBroken)
	var refusers []*modelEndpoint
	for _, a := range m.all {
		if a.refused.Load() > was[a].refused {
			refusers = append(refusers, a)
		}
	}
	for tried := len(refusers); tried > 0; tried-- {
		i := slices.IndexFunc(refusers, func(a *modelEndpoint) bool { return a.state == "ready" })
		require.GreaterOrEqual(rt, i, 0, "an endpoint that was not ready got a request")
		refusers[i].state = "unready"
		refusers = slices.Delete(refusers, i, i+1)
		m.readmitAll()
	}
	for _, a := range m.all {
		if a.calls.Load() > was[a].calls {
			require.False(rt, refused)
			require.Equal(rt, "ready", a.state, "an ejected endpoint got a request")
			m.answered(a)
			return
		}
	}
	require.True(rt, refused)
	tried := 0
	for _, a := range m.all {
		tried += int(a.refused.Load() - was[a].refused)
	}
	require.True(rt, tried == could || tried == 5, "rejected after %d of %d endpoints", tried, could)
}

func (m *detectionModel) answered(a *modelEndpoint) {
	if !a.bad {
		a.row = 0
		return
	}
	if a.row++; a.row < m.policy.ConsecutiveFailures {
		return
	}
	a.row = 0
	if m.count("ready")-1 < m.minReady() {
		m.skipped++
		return
	}
	if time.Since(a.returned) > m.policy.MaxEjectionTime {
		a.times = 0
	}
	a.state, a.until = "ejected", time.Time{}
	a.times++
	m.out = append(m.out, a)
	m.ejections++
}

// settle waits for background changes.
func (m *detectionModel) settle() {
	synctest.Wait()
	for _, a := range m.all {
		if a.state == "unready" && a.isOpen.Load() {
			a.state = "ready"
		}
	}
}

func (m *detectionModel) update(rt *rapid.T) {
	c := change{State: resolve.StateExists}
	for range rapid.IntRange(0, 3).Draw(rt, "added") {
		a := &modelEndpoint{server: newServer(m.next), state: "ready"}
		a.fail(func() bool { return a.bad })
		if rapid.Bool().Draw(rt, "shut") {
			a.state = "unready"
			a.open(false)
		}
		m.next++
		m.all = append(m.all, a)
		c.Added = append(c.Added, a.endpoint())
	}
	m.all = slices.DeleteFunc(m.all, func(a *modelEndpoint) bool {
		gone := rapid.IntRange(0, 5).Draw(rt, "gone") == 0
		if gone {
			c.Removed = append(c.Removed, a.endpoint())
			m.out = slices.DeleteFunc(m.out, func(o *modelEndpoint) bool { return o == a })
		}
		return gone
	})
	m.readmitAll()
	m.apply(c)
}

func (m *detectionModel) check(rt *rapid.T) {
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
	require.Equal(rt, m.skipped, d.Get("ejections_skipped"))
	require.Equal(rt, len(m.out), d.Get("ejected"))
	if len(m.out) > 0 {
		require.Positive(rt, m.count("ready"))
	}
}

// pass sleeps for a random time, at most until the next return.
func (m *detectionModel) pass(rt *rapid.T) {
	d := time.Duration(rapid.IntRange(1, 40).Draw(rt, "seconds")) * time.Second
	for _, a := range m.out {
		d = min(d, time.Until(a.until))
	}
	time.Sleep(d)
	for _, a := range slices.Clone(m.out) {
		if time.Until(a.until) <= 0 {
			m.readmit(a, map[bool]string{true: "ready", false: "unready"}[a.isOpen.Load()])
		}
	}
	m.settle()
}

func (m *detectionModel) one(rt *rapid.T) *modelEndpoint {
	if len(m.all) == 0 {
		rt.Skip("no endpoint")
	}
	return m.all[rapid.IntRange(0, len(m.all)-1).Draw(rt, "endpoint")]
}

// After any sequence of failures, rejections and changes the balancer has the states of
// the model.
func TestOutlierModel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer synctest.Wait()
			defer cancel()
			e := balance.OutlierDetection{
				ConsecutiveFailures: rapid.IntRange(1, 3).Draw(rt, "consecutive"), BaseEjectionTime: 20 * time.Second, MaxEjectionTime: 70 * time.Second,
				MinReady: rapid.SampledFrom([]float64{0.125, 0.5, 0.75, 1}).Draw(rt, "min ready"),
			}
			m := &detectionModel{pool: newPoolIn(ctx, roundRobin(e)...), policy: e}
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
