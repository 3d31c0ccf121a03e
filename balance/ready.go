package balance

import "sync/atomic"

// readySet is the endpoints to choose from. Reading takes no lock; it may see a
// set that is just being changed, with a slot that is empty or an endpoint that
// has gone, which its state tells. Writers hold the balancer's mutex.
type readySet struct {
	slots atomic.Pointer[slots]
}

// slots has its endpoints in the first n places, in no particular order.
type slots struct {
	n   atomic.Int64
	at  []atomic.Pointer[endpoint]
	all atomic.Pointer[[]*endpoint] // the same where they are few, else nil; what it points to is never changed
}

// clear leaves nothing. A set has to be cleared before it is used.
func (r *readySet) clear() { r.slots.Store(&slots{at: make([]atomic.Pointer[endpoint], 4)}) }

func (r *readySet) len() int { return int(r.slots.Load().n.Load()) }

func (r *readySet) add(e *endpoint) {
	s := r.slots.Load()
	i := s.n.Load()
	if int(i) == len(s.at) {
		s = s.grown()
	}
	e.slot = int(i)
	s.at[i].Store(e)
	s.n.Store(i + 1)
	s.list()
	r.slots.Store(s)
}

func (s *slots) grown() *slots {
	g := &slots{at: make([]atomic.Pointer[endpoint], 2*len(s.at))}
	for i := range s.at {
		g.at[i].Store(s.at[i].Load())
	}
	g.n.Store(s.n.Load())
	return g
}

// remove puts the last endpoint into the place of e.
func (r *readySet) remove(e *endpoint) {
	s := r.slots.Load()
	last := s.n.Load() - 1
	moved := s.at[last].Load()
	moved.slot = e.slot
	s.at[e.slot].Store(moved)
	s.n.Store(last)
	s.at[last].Store(nil)
	s.list()
}

// list makes all anew: to look at all is quicker without slots that may be empty.
func (s *slots) list() {
	n := int(s.n.Load())
	if n > scanned {
		s.all.Store(nil)
		return
	}
	all := make([]*endpoint, n)
	for i := range all {
		all[i] = s.at[i].Load()
	}
	s.all.Store(&all)
}

// walk visits the places below n, each once in n steps, from a random one on
// and by a random stride. Any few of them in a row are as good as drawn
// independently (Mitzenmacher, "Balanced Allocations and Double Hashing", 2014)
// and cost one random number.
type walk struct{ start, at, stride, n int }

func newWalk(random uint64, n int) walk {
	start := int(uint64(uint32(random)) * uint64(n) >> 32)
	stride := 1
	if n > 2 {
		stride += int(random >> 32 * uint64(n-1) >> 32)
	}
	return walk{start: start, at: start, stride: stride, n: n}
}

// next returns a place.
func (w *walk) next() int {
	i := w.at
	if w.at += w.stride; w.at >= w.n {
		w.at -= w.n
	}
	if w.at == w.start { // round, and perhaps not everywhere yet
		w.at = again(w.at, w.n)
		w.start = w.at
	}
	return i
}

// again is where to go on after a round that began at i, of n places.
func again(i, n int) int {
	if i++; i == n {
		return 0
	}
	return i
}
