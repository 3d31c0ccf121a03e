package balance

import (
	"net/netip"
	"testing"

	"github.com/gotower/gotower/resolve"
)

// member returns endpoint i with its own address and a weight of package resolve.
func member(i int, weight uint32) *endpoint {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	e := &endpoint{record: &record{id: resolve.ID{Addr: netip.AddrPortFrom(addr, 80)}}}
	e.latency.word.Store(pack(1e6, 0))
	e.status.setSamples(allSamples)
	e.setWeight(weight)
	return e
}

func members(n int) []*endpoint {
	es := make([]*endpoint, n)
	for i := range es {
		es[i] = member(i, unit)
	}
	return es
}

// hashOf returns a ConsistentHash over endpoints, with reproducible random numbers.
func hashOf(tb testing.TB, bound float64, es ...*endpoint) *hashing {
	tb.Helper()
	i := 0
	g := newGroup(Policy{}.orDefault(), func() uint64 { i++; return place(1, i) })
	h, ok := ConsistentHash(bound).on(g).(*hashing)
	if !ok {
		tb.Fatal("not a hashing")
	}
	for _, e := range es {
		h.join(e)
	}
	return h
}

// join and leave do the same as the balancer.
func (h *hashing) join(e *endpoint) {
	e.status.setState(ready)
	h.set(e).add(e, noDraw)
	h.joined(e)
}

func (h *hashing) leave(e *endpoint) {
	e.status.setState(removed)
	h.set(e).remove(e)
	h.left(e)
}

func keyed(key uint64) query { return query{affinity: key, hasAffinity: true} }

// owners returns the owner of each key below n.
func (h *hashing) owners(n int) []*endpoint {
	es := make([]*endpoint, n)
	for key := range es {
		es[key] = h.pick(keyed(uint64(key)))
	}
	return es
}
