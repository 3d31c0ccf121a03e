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

// TestQueueKeepsItsModel drives a queue with random arrivals, permits,
// departures and time, and compares it with a plain list.
func TestQueueKeepsItsModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) modelStep {
		return modelStep{kind: rapid.IntRange(0, 3).Draw(rt, "kind"), n: rapid.IntRange(1, 6000).Draw(rt, "n")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		// All is drawn before the bubble begins: rapid must not unwind it.
		steps := rapid.SliceOfN(step, 1, 40).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = driveQueue(t, steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// modelStep is an arrival, some permits, a departure or some milliseconds.
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

// modelLine is the part of a model that is a list of those who wait.
type modelLine struct {
	t       *testing.T
	queue   layer.Service[int, int]
	waiting []*modelCaller // in order
}

// call sends one caller, and lets happen what happens at once.
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

// depart cancels a caller in line.
func (l *modelLine) depart(i int) string {
	c := l.waiting[i]
	c.cancel()
	synctest.Wait()
	l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
	if problem := expect(c, context.Canceled, "it was cancelled"); problem != "" {
		return problem
	}
	return l.quiet()
}

// quiet checks that nobody in line has an answer.
func (l *modelLine) quiet() string {
	for _, c := range l.waiting {
		select {
		case err := <-c.answer:
			return "a caller in line got an answer: " + errText(err)
		default:
		}
	}
	if got := layer.Describe(l.queue).State.Get("waiting"); got != int64(len(l.waiting)) {
		return "the queue does not count those who wait"
	}
	return ""
}

// end cancels all who wait still.
func (l *modelLine) end() {
	for _, c := range l.waiting {
		c.cancel()
	}
}

type queueModel struct {
	modelLine
	gate    *gate
	vain    time.Time // since when they wait, without the pauses, for what was never there
	emptied time.Time // when the last one left
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

// arrive sends one caller.
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
		return expect(c, layer.ErrNotReady, "the line is full")
	}
	m.resume()
	m.waiting = append(m.waiting, c)
	return m.quiet()
}

// resume is the clock that goes on, or begins, as somebody stands in line.
func (m *queueModel) resume() {
	switch pause := time.Since(m.emptied); {
	case len(m.waiting) > 0:
	case m.vain.IsZero() || pause > modelMaxWait:
		m.vain = time.Now()
	default:
		m.vain = m.vain.Add(pause)
	}
}

// allow gives permits, which as many in line take: the first ones, but for
// those who are overtaken between their turn and their Call.
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
	m.waiting, m.vain, m.emptied = left, time.Time{}, time.Now()
	if len(left) > 0 {
		m.vain = time.Now() // of the one who has the turn now
	}
	if n < 0 || n > 0 && len(left) > 0 {
		return fmt.Sprintf("%d permits are left, and %d callers in line", n, len(left))
	}
	return m.quiet()
}

// depart is that of the list, and the last one to go stops the clock.
func (m *queueModel) depart(i int) string {
	problem := m.modelLine.depart(i)
	m.emptied = time.Now()
	return problem
}

// pass lets time go by; when the head has waited too long, or everybody
// together, all in line fail.
func (m *queueModel) pass(d time.Duration) string {
	over := len(m.waiting) > 0 && max(time.Since(m.waiting[0].arrived), time.Since(m.vain))+d >= modelMaxWait
	time.Sleep(d)
	synctest.Wait()
	if over {
		for _, c := range m.waiting {
			if problem := expect(c, layer.ErrFailFast, "the head waited too long"); problem != "" {
				return problem
			}
		}
		m.waiting, m.shut = nil, true
	}
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
