package layer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// failoverModel decides which service serves a request.
type failoverModel struct {
	after     time.Duration
	ready     bool
	unready   bool // the last answer was no
	since     time.Time
	fallbacks bool
}

func (m *failoverModel) call(now time.Time) string {
	switch {
	case m.ready:
		m.unready = false
		return "primary"
	case !m.unready:
		m.unready, m.since = true, now
	}
	if now.Sub(m.since) < m.after || !m.fallbacks {
		return "rejected"
	}
	return "fallback"
}

func TestFailoverModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		after := time.Duration(rapid.IntRange(0, 5).Draw(rt, "after")) * time.Second
		steps := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			primary, fallback := failoverMock("primary", true), failoverMock("fallback", true)
			svc := layer.Failover[string, string](primary, fallback, after)
			m := &failoverModel{after: after, ready: true, fallbacks: true}
			for i, step := range steps {
				switch step {
				case 0:
					primary.Deny()
					m.ready = false
				case 1:
					primary.Allow(1 << 30)
					m.ready = true
				case 2:
					fallback.Deny()
					m.fallbacks = false
				case 3:
					fallback.Allow(1 << 30)
					m.fallbacks = true
				case 4, 5:
					time.Sleep(time.Duration(i%4) * time.Second)
				case 6: // Ready asks primary, too
					want := m.call(time.Now()) != "rejected"
					if got := layer.Poll(svc) == nil; got != want {
						rt.Fatalf("step %d: ready is %v, want %v", i, got, want)
					}
				default:
					want := m.call(time.Now())
					if got := failoverTo(t, svc); got != want {
						rt.Fatalf("step %d: %s, want %s", i, got, want)
					}
				}
			}
		})
	})
}
