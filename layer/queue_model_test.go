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

type queueModel struct {
	t       *testing.T
	gate    *gate
	queue   layer.Service[int, int]
	waiting []*modelCaller // in order
	vain    time.Time      // since when they wait, without the pauses, for what was never there
	emptied time.Time      // when the last one left
	shut    bool
	next    int
}

func driveQueue(t *testing.T, steps []modelStep) (problem string) {
	m := &queueModel{t: t, gate: &gate{}}
	m.queue = queueOver(m.gate, modelCapacity, modelMaxWait)
	defer func() {
		for _, c := range m.waiting {
			c.cancel()
		}
	}()
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
	ctx, cancel := context.WithCancel(m.t.Context())
	c := &modelCaller{id: m.next, arrived: time.Now(), cancel: cancel, answer: make(chan error, 1)}
	m.next++
	permits := m.gate.permits.Load()
	go func() {
		_, err := m.queue.Call(ctx, c.id)
		c.answer <- err
	}()
	synctest.Wait()
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

// depart cancels a caller in line.
func (m *queueModel) depart(i int) string {
	c := m.waiting[i]
	c.cancel()
	synctest.Wait()
	m.waiting = append(m.waiting[:i:i], m.waiting[i+1:]...)
	m.emptied = time.Now()
	if problem := expect(c, context.Canceled, "it was cancelled"); problem != "" {
		return problem
	}
	return m.quiet()
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

// quiet checks that nobody in line has an answer.
func (m *queueModel) quiet() string {
	for _, c := range m.waiting {
		select {
		case err := <-c.answer:
			return "a caller in line got an answer: " + errText(err)
		default:
		}
	}
	if got := layer.Describe(m.queue).State.Get("waiting"); got != int64(len(m.waiting)) {
		return "the queue does not count those who wait"
	}
	return ""
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
