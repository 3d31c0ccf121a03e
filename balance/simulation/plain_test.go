package simulation

import (
	"math/rand/v2"
	"time"
)

// fleet is what a peer knows of each backend there is.
type fleet[S any] struct {
	ids    []int
	states []*S
	fresh  func(now time.Duration) *S
	forget bool // what is known is lost with every change
}

func (f *fleet[S]) set(live []int, now time.Duration) {
	known := make(map[int]*S)
	for i, id := range f.ids {
		if !f.forget {
			known[id] = f.states[i]
		}
	}
	f.ids, f.states = live, make([]*S, len(live))
	for i, id := range live {
		if f.states[i] = known[id]; f.states[i] == nil {
			f.states[i] = f.fresh(now)
		}
	}
}

func (f *fleet[S]) stop() {}

// pair draws two different places, or the same one twice if there is no other.
func (f *fleet[S]) pair(r *rand.Rand) (a, b int) {
	n := len(f.ids)
	if n == 1 {
		return 0, 0
	}
	if a, b = r.IntN(n), r.IntN(n-1); b >= a {
		b++
	}
	return a, b
}

func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 9)) }

// counted counts requests in flight, which is all that the plain rules know.
type counted struct {
	fleet[int]
	choose func(p *counted) int
	random *rand.Rand
	last   int
}

func newCounted(seed uint64, choose func(p *counted) int) *counted {
	return &counted{
		fleet:  fleet[int]{fresh: func(time.Duration) *int { return new(int) }},
		choose: choose, random: source(seed),
	}
}

func (p *counted) send(r *request, _ time.Duration) {
	i := p.choose(p)
	load := p.states[i]
	*load++
	r.to, r.onEnd = p.ids[i], func(time.Duration, error) { *load-- }
}

func newRoundRobin(seed uint64) policy {
	return newCounted(seed, func(p *counted) int {
		p.last++
		return p.last % len(p.ids)
	})
}

func newRandom(seed uint64) policy {
	return newCounted(seed, func(p *counted) int { return p.random.IntN(len(p.ids)) })
}

// newLeastLoaded looks at all, from a random one on: of equals, the first.
func newLeastLoaded(seed uint64) policy {
	return newCounted(seed, func(p *counted) int {
		n := len(p.ids)
		from := p.random.IntN(n)
		best := from
		for k := 1; k < n; k++ {
			if i := (from + k) % n; *p.states[i] < *p.states[best] {
				best = i
			}
		}
		return best
	})
}

// newLeastOfTwo is grpc-go's least_request with its default choice count. It
// draws with replacement: both may be the same.
func newLeastOfTwo(seed uint64) policy {
	return newCounted(seed, func(p *counted) int {
		a, b := p.random.IntN(len(p.ids)), p.random.IntN(len(p.ids))
		if *p.states[b] < *p.states[a] {
			return b
		}
		return a
	})
}
