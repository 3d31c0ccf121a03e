package layer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// TestQueueKeepsItsModelWhereReadyRefuses is TestQueueKeepsItsModel over a
// service that is always ready, and has permits for some keys and not for
// others.
func TestQueueKeepsItsModelWhereReadyRefuses(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) keyedStep {
		return keyedStep{
			modelStep{kind: rapid.IntRange(0, 3).Draw(rt, "kind"), n: rapid.IntRange(1, 6000).Draw(rt, "n")},
			rapid.IntRange(0, 2).Draw(rt, "key"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(step, 1, 40).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = driveKeyed(t, steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

type keyedStep struct {
	modelStep
	key int
}

type keyedModel struct {
	modelLine // the id of a caller is its key
	inner     *keyed
	permits   [3]int
}

func driveKeyed(t *testing.T, steps []keyedStep) (problem string) {
	m := &keyedModel{inner: newKeyed()}
	m.modelLine = modelLine{t: t, queue: queueOver(m.inner, modelCapacity, modelMaxWait)}
	defer m.end()
	for _, s := range steps {
		switch {
		case s.kind == 0:
			problem = m.arrive(s.key)
		case s.kind == 1:
			problem = m.allow(s.key, s.n%3+1)
		case s.kind == 2 && len(m.waiting) > 0:
			problem = m.depart(s.n % len(m.waiting))
		case s.kind == 3:
			problem = m.pass(time.Duration(s.n) * time.Millisecond)
		}
		if problem != "" {
			return problem
		}
	}
	return ""
}

func (m *keyedModel) arrive(key int) string {
	c := m.call(key, 10*key)
	switch {
	case m.permits[key] > 0:
		m.permits[key]--
		return expect(c, nil, "there was a permit for it, whoever stood in line for another")
	case len(m.waiting) == modelCapacity:
		return expect(c, layer.ErrNotReady, "the line is full")
	}
	m.waiting = append(m.waiting, c)
	return m.quiet()
}

// allow gives permits, which those take who wait for them once they have rested.
func (m *keyedModel) allow(key, n int) string {
	m.inner.allow(key, n)
	m.permits[key] += n
	return m.pass(100 * time.Millisecond)
}

// pass lets time go by. Whoever has waited for too long then fails, and nobody
// with it.
func (m *keyedModel) pass(d time.Duration) string {
	time.Sleep(d)
	synctest.Wait()
	var left []*modelCaller
	for _, c := range m.waiting {
		over := time.Since(c.arrived) >= modelMaxWait
		select {
		case err := <-c.answer:
			switch {
			case err == nil:
				m.permits[c.id]--
			case !over:
				return "it was not over its time, and it got " + errText(err)
			}
		default:
			if over {
				return "it was over its time, and it got no answer"
			}
			left = append(left, c)
		}
	}
	m.waiting = left
	for _, c := range left {
		if m.permits[c.id] > 0 {
			return "there is a permit for one in line"
		}
	}
	for _, n := range m.permits {
		if n < 0 {
			return "more were served than there were permits"
		}
	}
	return m.quiet()
}
