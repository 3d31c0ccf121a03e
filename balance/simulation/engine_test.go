package simulation

import (
	"container/heap"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
)

// simulation is one run of a scenario with one policy for each client.
type simulation struct {
	*scenario
	tiers  []*tier
	events events
	seq    int
	now    time.Duration
	sleep  func(until time.Duration) // advances the clock of the real balancer; nil for the peers
	random *rand.Rand
	calls  []*call
}

// tier is a set of backends with the policies of its clients. The backends of one tier are
// the clients of the next.
type tier struct {
	backends []*backend
	live     []int
	policies []policy
	retries  []budget // one for each client
}

// policy is a balancer of one client.
type policy interface {
	// set sets the backends that exist.
	set(live []int, now time.Duration)
	// send sets r.to, or -1 for a rejection, and the callbacks for the headers and the end.
	send(r *request, now time.Duration)
	stop()
}

// backend serves as many requests at once as it has workers. Others wait in a queue.
type backend struct {
	workers, busy, got int
	queue              []*request
	idle               bool // whether it waits in the idle queue of a client
	served             [64][8]time.Duration
	count              [64]int
}

// inFlight returns the number of requests that are served or wait.
func (b *backend) inFlight() int { return b.busy + len(b.queue) }

// budget is a token bucket for retries and hedges.
type budget float64

const budgetMax, budgetRatio = 10, 0.2

func (b *budget) deposit() { *b = min(*b+budgetRatio, budgetMax) }

func (b *budget) withdraw() bool {
	if *b < 1 {
		return false
	}
	*b--
	return true
}

// run simulates the scenario.
func (s *simulation) run(seed uint64, create func(t *tier, client int, seed uint64) policy) {
	s.random = rand.New(rand.NewPCG(seed, 1))
	clients := max(s.clients, 1)
	for range max(s.depth, 1) {
		t := &tier{retries: make([]budget, clients)}
		for i := range s.scenario.backends {
			t.backends = append(t.backends, &backend{workers: s.workers})
			if !slices.Contains(s.absent, i) {
				t.live = append(t.live, i)
			}
		}
		for i := range clients {
			t.policies = append(t.policies, create(t, i, seed*1000+uint64(len(s.tiers)*100+i)))
			t.retries[i] = budgetMax
		}
		clients = s.scenario.backends
		s.tiers = append(s.tiers, t)
		s.update(t)
	}
	for _, c := range s.script {
		s.at(c.at, func() {
			for _, t := range s.tiers {
				t.live = slices.DeleteFunc(slices.Clone(t.live), func(i int) bool { return slices.Contains(c.leave, i) })
				t.live = append(t.live, c.join...)
				for _, i := range c.join {
					t.backends[i].got = 0
				}
				s.update(t)
			}
		})
	}
	s.at(s.gap(), s.arrive)
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(event)
		if s.now = e.at; s.sleep != nil {
			s.sleep(s.now)
		}
		e.do()
	}
	for _, t := range s.tiers {
		for _, p := range t.policies {
			p.stop()
		}
	}
}

func (s *simulation) update(t *tier) {
	for _, p := range t.policies {
		p.set(t.live, s.now)
	}
	for i := range t.backends {
		s.reportIdle(t, i)
	}
}

func (s *simulation) gap() time.Duration {
	rate := s.rate
	if s.burst != nil {
		rate *= s.burst(s.now)
	}
	return time.Duration(s.random.ExpFloat64() / rate * float64(time.Second))
}

func (s *simulation) arrive() {
	c := &call{
		client: s.random.IntN(len(s.tiers[0].policies)), size: s.random.NormFloat64(), kind: s.random.Float64(), luck: s.random.Float64(),
	}
	if next := s.now + s.gap(); next < s.length {
		s.at(next, s.arrive)
	}
	s.calls = append(s.calls, c)
	s.begin(c)
}

// begin starts a call, with its first attempt.
func (s *simulation) begin(c *call) {
	c.sent = s.now
	s.tiers[c.tier].retries[c.client].deposit()
	if c.kind < s.impatient {
		s.at(s.now+s.patience, func() { s.leave(c, context.Canceled) })
	} else if s.timeout > 0 {
		s.at(s.now+s.timeout, func() { s.leave(c, context.DeadlineExceeded) })
	}
	s.attempt(c)
	if s.hedge > 0 {
		s.at(s.now+s.hedge, func() {
			if !c.over && c.head == 0 && s.tiers[c.tier].retries[c.client].withdraw() {
				s.attempt(c)
			}
		})
	}
}

// attempt sends one request of a call.
func (s *simulation) attempt(c *call) {
	t := s.tiers[c.tier]
	r := &request{call: c, sent: s.now, ctx: callerContext{Context: context.Background()}}
	if s.hedge > 0 || s.retries > 0 {
		if c.tried == nil {
			c.tried = new(layer.Attempts)
		}
		r.ctx.Context = layer.WithAttempts(r.ctx.Context, c.tried)
	}
	c.attempts = append(c.attempts, r)
	t.policies[c.client].send(r, s.now)
	if r.to < 0 {
		s.finish(r, errBackend)
		return
	}
	b := t.backends[r.to]
	r.inFlight = b.inFlight()
	r.nth = b.got
	b.got++
	if b.busy < b.workers {
		s.work(b, r)
		s.reportIdle(t, r.to)
		return
	}
	b.queue = append(b.queue, r)
}

// work assigns r to a worker of b.
func (s *simulation) work(b *backend, r *request) {
	b.busy++
	r.working, r.began = true, s.now
	a := s.serve(r, s.now)
	if a.head < a.end {
		s.at(s.now+a.head, func() { s.headers(r) })
	}
	s.at(s.now+a.end, func() {
		switch {
		case r.over:
			s.release(r)
		case a.err != nil || r.tier+1 == len(s.tiers):
			s.complete(r, a.err)
		default: // the worker waits for the next tier
			next := r.below()
			next.done = func(err error) { s.complete(r, err) }
			s.begin(next)
		}
	})
}

// below returns the call of the next tier for r. Its random numbers depend only on the call and the
// attempts so far, so that they are the same for every policy.
func (r *request) below() *call {
	random := rand.New(rand.NewPCG(math.Float64bits(r.size), uint64(len(r.attempts))))
	return &call{tier: r.tier + 1, client: r.to, size: random.NormFloat64(), kind: random.Float64(), luck: random.Float64()}
}

// complete ends a request that its backend has served.
func (s *simulation) complete(r *request, err error) {
	if r.over { // it was abandoned while the next tier worked
		s.release(r)
		return
	}
	if err == nil && r.head == 0 {
		s.headers(r)
	}
	b := s.tiers[r.tier].backends[r.to]
	slot := min(r.inFlight, len(b.served)-1)
	b.served[slot][b.count[slot]%len(b.served[slot])] = s.now - r.sent
	b.count[slot]++
	s.finish(r, err)
}

// headers is the arrival of the headers of r. It cancels the other attempts of the call.
func (s *simulation) headers(r *request) {
	if r.over {
		return
	}
	if r.head = s.now; r.onHead != nil {
		r.onHead(s.now)
	}
	if r.call.head != 0 {
		return
	}
	r.call.head = s.now
	for _, other := range r.attempts {
		if other != r {
			s.abandon(other, context.Canceled)
		}
	}
}

// leave ends a call for its caller.
func (s *simulation) leave(c *call, cause error) {
	if c.over || c.head != 0 {
		return
	}
	c.end(s.now, cause)
	for _, r := range c.attempts {
		s.abandon(r, cause)
	}
}

func (s *simulation) abandon(r *request, cause error) {
	if !r.over {
		r.ctx.err = cause
		s.finish(r, cause)
	}
}

// finish ends r. Its worker takes the next request, unless r was abandoned: most servers finish such a
// request. The call ends or is retried.
func (s *simulation) finish(r *request, err error) {
	r.over, r.err = true, err
	if r.onEnd != nil {
		r.onEnd(s.now, err)
	}
	if r.working && r.ctx.err == nil {
		s.release(r)
	}
	c := r.call
	switch {
	case c.over || slices.ContainsFunc(c.attempts, func(r *request) bool { return !r.over }):
	case err != nil && len(c.attempts) <= s.retries && s.tiers[c.tier].retries[c.client].withdraw():
		s.attempt(c)
	default:
		c.end(s.now, err)
	}
}

// release frees the worker of r. It takes the next request.
func (s *simulation) release(r *request) {
	b := s.tiers[r.tier].backends[r.to]
	b.busy--
	for len(b.queue) > 0 && b.busy < b.workers {
		next := b.queue[0]
		b.queue = b.queue[1:]
		s.work(b, next)
	}
	s.reportIdle(s.tiers[r.tier], r.to)
}

// reportIdle lets a backend with a free worker join the idle queue of a random client.
func (s *simulation) reportIdle(t *tier, i int) {
	b := t.backends[i]
	p, ok := inner(t.policies[0]).(*joinIdleQueue)
	if !ok || b.idle || b.busy >= b.workers || !slices.Contains(t.live, i) || s.unreachable(i, s.now) {
		return
	}
	p, _ = inner(t.policies[p.random.IntN(len(t.policies))]).(*joinIdleQueue)
	b.idle = true
	p.queue = append(p.queue, i)
}

func (s *simulation) at(t time.Duration, do func()) {
	s.seq++
	heap.Push(&s.events, event{t, s.seq, do})
}

// event is a callback at a time. Of two at the same time, the first one planned runs first.
type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (e *events) Len() int { return len(*e) }

func (e *events) Less(i, j int) bool {
	a, b := &(*e)[i], &(*e)[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (e *events) Swap(i, j int) { (*e)[i], (*e)[j] = (*e)[j], (*e)[i] }

func (e *events) Push(x any) { *e = append(*e, x.(event)) }

func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return last
}
