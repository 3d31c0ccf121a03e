package resolve

import (
	"cmp"
	"context"
	"hash/fnv"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
)

// subsetSize is the default of SubsetPolicy.Size, which is the minimum of Finagle's
// deterministic aperture.
const subsetSize = 12

// SubsetPolicy configures [Subset].
type SubsetPolicy struct {
	// Peer is the number of this client, from 0 to Peers-1, for example its ordinal in
	// a StatefulSet. It should be unique and must not change. A number out of range is
	// reduced modulo Peers, so that a client works before Peers is updated.
	Peer int

	// Peers is the number of clients. With 0 or less, every client uses all endpoints.
	Peers int

	// Size is the number of endpoints that a client uses. 0 or less means 12, the
	// minimum of Finagle. It is increased to n/Peers, rounded up, where n is the number
	// of endpoints, so that each endpoint is used.
	Size int
}

// Subset returns a Resolver with a part of the endpoints of r, for many clients of many
// endpoints. The part depends only on the policy and the addresses. All clients should
// have the same Peers and Size. If there are at most Size endpoints, all are used.
//
// The endpoints are placed on a ring in the order of a hash of their addresses. Peer p
// uses Size endpoints from place ⌊p·n/Peers⌋. This is Finagle's deterministic aperture
// with whole endpoints. Its properties are:
//
//   - The numbers of peers of two endpoints differ by at most one.
//   - A change of one endpoint changes at most two others of each peer.
//
// Random subsets (gRPC A68) change less, but the number of peers of an endpoint varies by
// √(Size·Peers/n). Weights have no effect, because a balancer divides the load by them.
//
// Each update of r becomes the smallest update with the same effect, see [Dedupe].
// Errors are passed unchanged. Place Subset around [ServeStale], which then counts all
// endpoints. Each update sorts all endpoints.
func Subset(r Resolver, p SubsetPolicy) Resolver {
	requireResolvers(r)
	if p.Peers <= 0 {
		return r
	}
	if p.Size <= 0 {
		p.Size = subsetSize
	}
	p.Peer %= p.Peers
	if p.Peer < 0 {
		p.Peer += p.Peers
	}
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) {
			var all, known Set
			var lost bool
			for u, err := range r.Resolve(ctx, target) {
				if err == nil {
					all.Apply(u)
					var changed bool
					u, changed = part(&known, &all, p.choose(&all))
					if u, changed = confirm(&known, &lost, u, changed); !changed {
						continue
					}
				}
				lost = lost || err != nil
				if !yield(u, err) {
					return
				}
			}
		}
	})
}

// choose returns the endpoints of the peer, from s.
func (p SubsetPolicy) choose(s *Set) []Endpoint {
	n := s.Len()
	size := max(p.Size, (n-1)/p.Peers+1)
	if n <= size {
		return s.Endpoints()
	}
	type place struct {
		hash uint64
		addr netip.AddrPort
	}
	ring := make([]place, 0, n)
	for addr := range s.byAddr {
		ring = append(ring, place{placeOf(addr), addr})
	}
	slices.SortFunc(ring, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), a.addr.Compare(b.addr))
	})
	// The product of both could overflow a uint64.
	hi, lo := bits.Mul64(uint64(p.Peer), uint64(n))
	start, _ := bits.Div64(hi, lo, uint64(p.Peers))
	chosen := make([]Endpoint, size)
	for i := range chosen {
		chosen[i] = s.byAddr[ring[(int(start)+i)%n].addr]
	}
	return chosen
}

// placeOf returns the place of an address on the ring, which must be the same in every
// process and release. The hash is FNV-1a, followed by the finalizer of SplitMix64,
// because in FNV the last bytes hardly affect the high bits.
func placeOf(addr netip.AddrPort) uint64 {
	sum := fnv.New64a()
	text, _ := addr.AppendText(make([]byte, 0, 64)) // never fails
	_, _ = sum.Write(text)                          // never fails
	h := sum.Sum64()
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// part returns the update that changes known to the chosen endpoints of all. It returns
// false if nothing changes.
func part(known, all *Set, chosen []Endpoint) (Update, bool) {
	switch all.State() {
	case StatePending:
		return Update{}, false
	case StateExists:
		return delta(known, Update{Kind: Replace, Endpoints: chosen})
	default:
		return delta(known, whole(all))
	}
}
