package balance

import (
	"fmt"
	"sync/atomic"
	"testing"
)

// One pick for many keys, and for one hot key, without the request.
func BenchmarkHash(b *testing.B) {
	for _, n := range []int{2, 100, 10_000, 100_000} {
		es := members(n)
		h := hashOf(b, 0, es...)
		h.random = newGroup(Policy{}.orDefault(), nil).random
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				h.pick(query{affinity: i, hasAffinity: true})
			}
		})
		b.Run(fmt.Sprintf("n=%d/par", n), func(b *testing.B) {
			var from atomic.Uint64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := from.Add(1 << 32); pb.Next(); i++ {
					h.pick(query{affinity: i, hasAffinity: true})
				}
			})
		})
		b.Run(fmt.Sprintf("n=%d/busy", n), func(b *testing.B) { // each has some; a count every thousand
			for i, e := range es {
				e.work.Store(uint64(5 + i%5))
			}
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				h.pick(query{affinity: i, hasAffinity: true, now: uint32(i / 1000)})
			}
		})
		b.Run(fmt.Sprintf("n=%d/hot", n), func(b *testing.B) { // one key has them all, twice as many as endpoints
			for _, e := range es {
				e.work.Store(0)
			}
			running := make([]*endpoint, 2*n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if e := running[i%len(running)]; e != nil {
					e.end()
				}
				e := h.pick(query{affinity: 1, hasAffinity: true, now: uint32(i / 1000)})
				e.begin(0)
				running[i%len(running)] = e
			}
		})
	}
}

// One of n endpoints leaves and joins again.
func BenchmarkHashChange(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		es := members(n)
		h := hashOf(b, 0, es...)
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h.left(es[i*7919%n])
				h.joined(es[i*7919%n])
			}
		})
	}
}
