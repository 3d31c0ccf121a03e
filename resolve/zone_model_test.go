package resolve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// zoneModel is a Zone that is too simple to be wrong: it goes second by second,
// and looks at all there is.
type zoneModel struct {
	policy       ZonePolicy
	source, want model
	wide         bool
	enough       int  // seconds
	lost         bool // the last word of the source is an error
	idle         int  // updates that only said that an error is over
}

func (m *zoneModel) answer(u Update) {
	m.source.apply(u)
	before := m.want.clone()
	m.judge()
	if m.source.state == StatePending {
		return
	}
	if m.lost && before.state == m.want.state && slices.EqualFunc(before.endpoints(), m.want.endpoints(), Endpoint.Equal) {
		m.idle++
	}
	m.lost = false
}

// near is the list of what is not another zone's.
func (m *zoneModel) near() (near []Endpoint, enough bool) {
	local, remote := 0, 0
	for _, e := range m.source.endpoints() {
		switch e.Labels["zone"] {
		case "a":
			local++
			near = append(near, e)
		case "":
			near = append(near, e)
		default:
			remote++
		}
	}
	return near, local >= m.policy.Min && float64(local) >= m.policy.Share*float64(local+remote)
}

func (m *zoneModel) judge() {
	near, enough := m.near()
	switch {
	case !enough:
		m.wide, m.enough = true, 0
	case len(m.want.list) == 0 || m.enough >= int(m.policy.StabilizationWindow/time.Second):
		m.wide = false
	}
	m.want = m.source.clone()
	if !m.wide {
		m.want.list = near
	}
}

func (m *zoneModel) second() {
	if _, enough := m.near(); enough {
		m.enough++
	}
	m.judge()
}

// label gives endpoints a zone instead of the weight that the generator gave
// them; host 4 has none.
func label(u Update) Update {
	for n := range u.Endpoints {
		e := &u.Endpoints[n]
		zone := []string{"a", "b"}[e.Weight]
		if e.Addr.Addr().As4()[3] == 4 {
			zone = ""
		}
		e.Weight, e.Labels = 0, map[string]string{"zone": zone}
	}
	return u
}

func checkZone(t *testing.T, p ZonePolicy, steps []step) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		source := make(puppet)
		c := consume(ctx, Zone(source, "a", p))
		m := zoneModel{policy: p}
		errs := 0
		time.Sleep(time.Millisecond) // off the beat: no message comes as Hold ends
		for n, s := range steps {
			before := len(c.look().updates)
			switch {
			case s.ended:
				continue
			case s.wait > 0:
				for range int(s.wait / time.Second) {
					m.second()
				}
				time.Sleep(s.wait)
			case s.err != nil:
				source <- s.message
				m.lost = true
				errs++
			default:
				s.update = label(s.update)
				source <- s.message
				m.answer(s.update)
			}
			now := c.look()
			err = differs(&now.set, &m.want)
			if err == nil && (len(now.updates) > before+1 || now.idle != m.idle || len(now.errs) != errs) {
				err = errors.New("not one update for a change, or an error lost")
			}
			if err != nil {
				err = fmt.Errorf("step %d: %w", n, err)
				return
			}
		}
	})
	return err
}

func TestZoneIsItsModel(t *testing.T) {
	steps := someSteps(2)
	rapid.Check(t, func(r *rapid.T) {
		p := ZonePolicy{
			Min:                 rapid.IntRange(1, 3).Draw(r, "min"),
			Share:               rapid.SampledFrom([]float64{0, 0.5}).Draw(r, "share"),
			StabilizationWindow: rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second}).Draw(r, "hold"),
		}
		if err := checkZone(t, p, steps.Draw(r, "steps")); err != nil {
			r.Fatal(err)
		}
	})
}
