package simulation

import (
	"math"
	"math/rand/v2"
	"time"
)

// fleet has the state that a peer keeps for each backend.
type fleet[S any] struct {
	ids    []int // the backends that may be picked
	states []*S  // of ids
	known  map[int]*S
	create func(now time.Duration) *S
	forget bool // the state is lost with every change of the set
}

func (f *fleet[S]) set(live []int, now time.Duration) {
	known := make(map[int]*S)
	for _, id := range live {
		if known[id] = f.known[id]; f.forget || known[id] == nil {
			known[id] = f.create(now)
		}
	}
	f.known = known
	f.limit(live)
}

// limit lets the peer pick only some of the backends. It keeps the state of the others.
func (f *fleet[S]) limit(ids []int) {
	f.ids, f.states = ids, make([]*S, len(ids))
	for i, id := range ids {
		f.states[i] = f.known[id]
	}
}

func (f *fleet[S]) stop() {}

// pair draws two different places, or the same one twice if it is the only one.
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

// least returns the place with the lowest cost. It starts at a random place and keeps the first
// of equal ones.
func (f *fleet[S]) least(r *rand.Rand, cost func(i int) float64) int {
	n := len(f.ids)
	best, lowest := 0, math.Inf(1)
	for k, from := 0, r.IntN(n); k < n; k++ {
		i := from + k
		if i >= n {
			i -= n
		}
		if c := cost(i); c < lowest {
			best, lowest = i, c
		}
	}
	return best
}

func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 9)) }

// counted is a rule that knows only the numbers of requests in flight.
type counted struct {
	fleet[int]
	choose func(p *counted) int
	random *rand.Rand
	last   int
}

func newCounted(e env, choose func(p *counted) int) *counted {
	return &counted{
		fleet:  fleet[int]{create: func(time.Duration) *int { return new(int) }},
		choose: choose, random: source(e.seed),
	}
}

func (p *counted) send(r *request, _ time.Duration) {
	i := p.choose(p)
	load := p.states[i]
	*load++
	r.to, r.onEnd = p.ids[i], func(time.Duration, error) { *load-- }
}

func newRoundRobin(e env) policy {
	return newCounted(e, func(p *counted) int {
		p.last++
		return p.last % len(p.ids)
	})
}

func newRandom(e env) policy {
	return newCounted(e, func(p *counted) int { return p.random.IntN(len(p.ids)) })
}

func newLeastRequestScan(e env) policy {
	return newCounted(e, func(p *counted) int {
		return p.least(p.random, func(i int) float64 { return float64(*p.states[i]) })
	})
}

// newLeastOfTwo draws with replacement, as grpc-go does.
func newLeastOfTwo(e env) policy {
	return newCounted(e, func(p *counted) int {
		a, b := p.random.IntN(len(p.ids)), p.random.IntN(len(p.ids))
		if *p.states[b] < *p.states[a] {
			return b
		}
		return a
	})
}

// newAperture is Finagle's deterministic aperture with least loaded. Each client has a range of
// the ring of backends, so that all ranges together cover the ring evenly. It picks two of the
// range at random, by their share in it, and sends to the one with less load per share.
func newAperture(e env) policy {
	const minimum = 12
	return newCounted(e, func(p *counted) int {
		n := float64(len(p.ids))
		unit := 1 / float64(e.clients)
		width := min(math.Ceil(min(minimum, n)/n/unit)*unit, 1)
		from := float64(e.client) * unit
		draw := func() int { return int(math.Mod(from+p.random.Float64()*width, 1) * n) }
		share := func(i int) float64 { // the part of backend i that is in the range
			if width == 1 {
				return 1
			}
			low, high := float64(i)/n, float64(i+1)/n
			part := func(shift float64) float64 { return max(0, min(high+shift, from+width)-max(low+shift, from)) }
			return max((part(0)+part(1))*n, 1e-9)
		}
		a := draw()
		b := a
		for range 10 {
			if b = draw(); b != a {
				break
			}
		}
		if float64(*p.states[b])/share(b) < float64(*p.states[a])/share(a) {
			return b
		}
		return a
	})
}
