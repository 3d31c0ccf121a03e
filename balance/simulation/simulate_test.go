package simulation

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// policy is a balancer under test.
type policy interface {
	// set says which backends there are from now on.
	set(live []int, now time.Duration)
	// send chooses r.to, or -1, and what to call when the response's head and
	// its end are there.
	send(r *request, now time.Duration)
	// stop ends what runs in the background.
	stop()
}

// simulation is one run.
type simulation struct {
	scenario *scenario
	policies []policy // one for each client
	backends []*backend
	live     []int
	events   events
	seq      int
	now      time.Duration
	sleep    func(until time.Duration) // nil: nobody looks at a clock
	random   *rand.Rand
	log      []*request
}

// backend serves as many requests at once as it has workers, and queues the
// others, first come, first served.
type backend struct {
	workers int
	busy    int
	got     int
	queue   []*request
}

// simulate runs s and returns its requests in the order of their arrival.
func (s *simulation) simulate(seed uint64) []*request {
	s.random = rand.New(rand.NewPCG(seed, 1))
	for range s.scenario.backends {
		s.backends = append(s.backends, &backend{workers: s.scenario.workers})
	}
	for i := range s.backends {
		if !slices.Contains(s.scenario.absent, i) {
			s.live = append(s.live, i)
		}
	}
	s.tell()
	for _, c := range s.scenario.script {
		s.at(c.at, func() { s.change(c) })
	}
	s.at(s.gap(), s.arrive)
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(event)
		if s.now = e.at; s.sleep != nil {
			s.sleep(s.now)
		}
		e.do()
	}
	for _, p := range s.policies {
		p.stop()
	}
	return s.log
}

func (s *simulation) tell() {
	for _, p := range s.policies {
		p.set(s.live, s.now)
	}
}

func (s *simulation) change(c change) {
	s.live = slices.DeleteFunc(slices.Clone(s.live), func(i int) bool { return slices.Contains(c.leave, i) })
	s.live = append(s.live, c.join...)
	s.tell()
}

func (s *simulation) gap() time.Duration {
	return time.Duration(s.random.ExpFloat64() / s.scenario.rate * float64(time.Second))
}

func (s *simulation) arrive() {
	r := &request{
		ctx: context.Background(), sent: s.now,
		client: s.random.IntN(len(s.policies)), size: s.random.NormFloat64(),
	}
	kind := s.random.Float64()
	r.stream = kind < s.scenario.streams
	r.impatient = kind < s.scenario.impatient
	if next := s.now + s.gap(); next < s.scenario.length {
		s.at(next, s.arrive)
	}
	if r.impatient {
		r.ctx, r.cancel = context.WithCancel(r.ctx)
		s.at(s.now+s.scenario.patience, func() { s.leave(r) })
	}
	s.log = append(s.log, r)
	s.policies[r.client].send(r, s.now)
	if r.to < 0 {
		s.finish(r, errBackend)
		return
	}
	b := s.backends[r.to]
	r.nth = b.got
	b.got++
	if b.busy < b.workers {
		s.work(b, r)
		return
	}
	b.queue = append(b.queue, r)
}

// work gives r to a worker of b.
func (s *simulation) work(b *backend, r *request) {
	b.busy++
	r.working = true
	r.answer = s.scenario.serve(r, s.now)
	if r.answer.head < r.answer.end {
		s.at(s.now+r.answer.head, func() { s.first(r) })
	}
	s.at(s.now+r.answer.end, func() {
		if r.over {
			return
		}
		if r.answer.err == nil && r.head == 0 {
			s.first(r)
		}
		s.finish(r, r.answer.err)
	})
}

func (s *simulation) first(r *request) {
	if r.over {
		return
	}
	if r.head = s.now; r.onHead != nil {
		r.onHead(s.now)
	}
}

// leave is for a caller who does not wait any longer.
func (s *simulation) leave(r *request) {
	if r.over {
		return
	}
	r.cancel()
	s.finish(r, context.Canceled)
}

// finish ends r, and the worker takes the next one.
func (s *simulation) finish(r *request, err error) {
	r.over, r.end, r.err = true, s.now, err
	if r.onEnd != nil {
		r.onEnd(s.now, err)
	}
	if r.cancel != nil {
		r.cancel()
	}
	if !r.working {
		return
	}
	b := s.backends[r.to]
	b.busy--
	for len(b.queue) > 0 {
		next := b.queue[0]
		b.queue = b.queue[1:]
		if !next.over { // its caller may have left
			s.work(b, next)
			return
		}
	}
}

func (s *simulation) at(t time.Duration, do func()) {
	s.seq++
	heap.Push(&s.events, event{t, s.seq, do})
}
