package layer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// TestQueueModel drives a queue with random arrivals, permits, cancellations and time, and
// compares it with a plain list.
func TestQueueModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) modelStep {
		return modelStep{kind: rapid.IntRange(0, 3).Draw(rt, "kind"), n: rapid.IntRange(1, 6000).Draw(rt, "n")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		// All random values are drawn before the bubble begins, because rapid must not
		// unwind it.
		steps := rapid.SliceOfN(step, 1, 40).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = driveQueue(t, steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// modelStep is one step of the model: an arrival, some permits, a cancellation or some
// milliseconds.
type modelStep struct{ kind, n int }

const (
	modelCapacity = 5
	modelMaxWait  = 10 * time.Second
)

type modelCaller struct {
	id      int
	arrived time.Time
	cancel  context.CancelFunc
	answer  chan error
}

// modelLine is the list of waiting callers.
type modelLine struct {
	t       *testing.T
	queue   layer.Service[int, int]
	waiting []*modelCaller // in order
}

// call sends one request.
func (l *modelLine) call(id, req int) *modelCaller {
	ctx, cancel := context.WithCancel(l.t.Context())
	c := &modelCaller{id: id, arrived: time.Now(), cancel: cancel, answer: make(chan error, 1)}
	go func() {
		_, err := l.queue.Call(ctx, req)
		c.answer <- err
	}()
	synctest.Wait()
	return c
}

// depart cancels a waiting caller.
func (l *modelLine) depart(i int) string {
	c := l.waiting[i]
	c.cancel()
	synctest.Wait()
	l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
	if problem := expect(c, context.Canceled, "it was canceled"); problem != "" {
		return problem
	}
	return l.quiet()
}

// quiet checks that no waiting caller has a result.
func (l *modelLine) quiet() string {
	for _, c := range l.waiting {
		select {
		case err := <-c.answer:
			return "a waiting caller got an answer: " + errText(err)
		default:
		}
	}
	if got := layer.Describe(l.queue).State.Get("waiting"); got != int64(len(l.waiting)) {
		return "the queue has a wrong length"
	}
	return ""
}

// end cancels all waiting callers.
func (l *modelLine) end() {
	for _, c := range l.waiting {
		c.cancel()
	}
}

type queueModel struct {
	modelLine
	gate    *gate
	unready time.Time // the last time of a permit, or of an empty queue
	shut    bool
	next    int
}

func driveQueue(t *testing.T, steps []modelStep) (problem string) {
	m := &queueModel{gate: &gate{}}
	m.modelLine = modelLine{t: t, queue: queueOver(m.gate, modelCapacity, modelMaxWait)}
	defer m.end()
	for _, s := range steps {
		switch {
		case s.kind == 0:
			problem = m.arrive()
		case s.kind == 1:
			problem = m.allow(int64(s.n%3 + 1))
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

// arrive adds one caller.
func (m *queueModel) arrive() string {
	permits := m.gate.permits.Load()
	c := m.call(m.next, m.next)
	m.next++
	switch {
	case permits > 0: // which also opens a queue in fail-fast
		m.shut = false
		return expect(c, nil, "there was a permit")
	case m.shut:
		return expect(c, layer.ErrNotReady, "the queue is in fail-fast")
	case len(m.waiting) == modelCapacity:
		return expect(c, layer.ErrNotReady, "the queue is full")
	}
	if len(m.waiting) == 0 {
		m.unready = time.Now()
	}
	m.waiting = append(m.waiting, c)
	return m.quiet()
}

// allow adds permits, and lets as many waiting callers take them.
func (m *queueModel) allow(n int64) string {
	m.gate.allow(n)
	synctest.Wait()
	var left []*modelCaller
	for _, c := range m.waiting {
		select {
		case err := <-c.answer:
			if err != nil {
				return "there was a permit, and it got " + errText(err)
			}
			n--
		default:
			left = append(left, c)
		}
	}
	m.waiting, m.unready = left, time.Now()
	if n < 0 || n > 0 && len(left) > 0 {
		return fmt.Sprintf("%d permits are left, and %d callers wait", n, len(left))
	}
	return m.quiet()
}

// pass lets time pass. Each caller waits at most for the limit. All callers fail when no
// permit was added for the limit.
func (m *queueModel) pass(d time.Duration) string {
	end, shutAt := time.Now().Add(d), m.unready.Add(modelMaxWait)
	time.Sleep(d)
	synctest.Wait()
	var left []*modelCaller
	for _, c := range m.waiting {
		late := c.arrived.Add(modelMaxWait)
		if !shutAt.After(end) && !late.Before(shutAt) {
			m.shut = true
		}
		if !m.shut && late.After(end) {
			left = append(left, c)
			continue
		}
		if problem := expect(c, layer.ErrFailFast, "the limit is over"); problem != "" {
			return problem
		}
	}
	m.waiting = left
	return m.quiet()
}

func expect(c *modelCaller, want error, why string) string {
	select {
	case err := <-c.answer:
		if !errors.Is(err, want) {
			return why + ", and it got " + errText(err)
		}
		return ""
	default:
		return why + ", and it got no answer"
	}
}

func errText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}
