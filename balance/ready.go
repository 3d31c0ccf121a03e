package balance

import (
	"math/rand/v2"
	"sync/atomic"
)

// readySet is the nodes to choose from. Reading takes no lock; it may see a set
// that is just being changed, with a slot that is empty or a node that has
// gone, which its state tells. Writers hold the balancer's mutex.
type readySet[Req, Rsp any] struct {
	slots atomic.Pointer[slots[Req, Rsp]]
}

// slots has its nodes in the first n places, in no particular order.
type slots[Req, Rsp any] struct {
	n  atomic.Int64
	at []atomic.Pointer[node[Req, Rsp]]
}

// clear leaves nothing. A set has to be cleared before it is used.
func (r *readySet[Req, Rsp]) clear() {
	r.slots.Store(&slots[Req, Rsp]{at: make([]atomic.Pointer[node[Req, Rsp]], 4)})
}

func (r *readySet[Req, Rsp]) len() int { return int(r.slots.Load().n.Load()) }

func (r *readySet[Req, Rsp]) add(n *node[Req, Rsp]) {
	s := r.slots.Load()
	i := s.n.Load()
	if int(i) == len(s.at) {
		s = s.grown()
	}
	n.slot = int(i)
	s.at[i].Store(n)
	s.n.Store(i + 1)
	r.slots.Store(s)
}

func (s *slots[Req, Rsp]) grown() *slots[Req, Rsp] {
	g := &slots[Req, Rsp]{at: make([]atomic.Pointer[node[Req, Rsp]], 2*len(s.at))}
	for i := range s.at {
		g.at[i].Store(s.at[i].Load())
	}
	g.n.Store(s.n.Load())
	return g
}

// remove puts the last node into the place of n.
func (r *readySet[Req, Rsp]) remove(n *node[Req, Rsp]) {
	s := r.slots.Load()
	last := s.n.Load() - 1
	moved := s.at[last].Load()
	moved.slot = n.slot
	s.at[n.slot].Store(moved)
	s.n.Store(last)
	s.at[last].Store(nil)
}

// choose returns the cheapest of k different nodes, each as likely as any
// other; of equals, the first. It returns nil if there is none, or if it met
// the set in the middle of a change.
func (r *readySet[Req, Rsp]) choose(k int, now uint32, decay float64) *node[Req, Rsp] {
	s := r.slots.Load()
	n := int(s.n.Load())
	switch {
	case n == 0:
		return nil
	case n == 1:
		return s.at[0].Load()
	case k == 2 || n == 2:
		i, j := two(n)
		return cheaper(s.at[i].Load(), s.at[j].Load(), now, decay)
	}
	var taken [maxChoices]int // in ascending order
	var best *node[Req, Rsp]
	for m := range min(k, n) {
		best = cheaper(best, s.at[draw(&taken, m, n)].Load(), now, decay)
	}
	return best
}

// two returns two different indices below n, every pair in either order as
// likely as any other, to within n/2^32.
func two(n int) (i, j int) {
	r := rand.Uint64()
	i = int(uint64(uint32(r)) * uint64(n) >> 32)
	j = int(r >> 32 * uint64(n-1) >> 32)
	if j >= i {
		j++
	}
	return i, j
}

// draw returns an index below n that is not among the m taken ones, and puts
// it there.
func draw(taken *[maxChoices]int, m, n int) int {
	i := rand.IntN(n - m)
	place := 0
	for ; place < m && taken[place] <= i; place++ {
		i++
	}
	copy(taken[place+1:m+1], taken[place:m])
	taken[place] = i
	return i
}

func cheaper[Req, Rsp any](a, b *node[Req, Rsp], now uint32, decay float64) *node[Req, Rsp] {
	switch {
	case a == nil:
		return b
	case b == nil || !b.cost(now).less(a.cost(now), decay):
		return a
	}
	return b
}
