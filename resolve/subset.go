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

// subsetSize is the least that Finagle's deterministic aperture takes.
const subsetSize = 12

// SubsetPolicy says which client of several this one is, and how many endpoints
// it wants.
type SubsetPolicy struct {
	// Peer is the number of this client, from 0 to Peers-1: the ordinal of a
	// StatefulSet, say. It must stay the same for as long as the client lives,
	// and no two clients should have the same. A number out of range is taken
	// modulo Peers, so that a client that starts before the others have heard of
	// it works too: it uses what another one uses.
	Peer int

	// Peers is how many clients there are. With 0 or less, every endpoint is
	// passed on. Clients that for a while do not agree on it are not spread as
	// evenly meanwhile.
	Peers int

	// Size is how many endpoints a client uses. 0 or less means 12, the least
	// that Finagle takes. Where that would leave endpoints that no client uses,
	// it is n/Peers instead, rounded up, for n endpoints.
	Size int
}

// Subset returns a Resolver that passes on a part of what r says, so that many
// clients of many endpoints need not all know all. Which part is for the policy
// alone to say, and for the addresses: not for chance, nor the order of r. All
// clients should have the same Peers and Size. When there are no more endpoints
// than Size, all of them are passed on, as they are.
//
// The endpoints stand in a ring of n, in the order of a hash of their addresses
// so that those of one subnet are not together. Peer p uses Size of them that
// stand side by side, from place ⌊p·n/Peers⌋ on: the deterministic aperture of
// Finagle, in whole endpoints instead of slices of them. So:
//
//   - Every endpoint is used by ⌊Size·Peers/n⌋ or ⌈Size·Peers/n⌉ peers, so no
//     two differ by more than one.
//   - When one endpoint comes or goes, no peer takes up, or lets go, more than
//     two others. Of the peers that do not use it, about a quarter to a half
//     move on by one place, in the mean over the endpoints that may go.
//
// Other schemes trade these: random subsets (gRPC A68, rendezvous hashing)
// change for none but those who used the endpoint, but the number of peers an
// endpoint has varies like √(Size·Peers/n). The shuffled rounds of Google's SRE
// book are about as even, but a change of n changes most subsets as a whole.
//
// Weights and labels are carried along. Weights do not count in the choice: a
// balancer of the subset divides the load by them, and an endpoint of weight 2
// has twice the share of it in each subset, not twice as many peers.
//
// An update of r becomes one update, the least that does it, or none, but for
// the first one after an error (see [Dedupe]). Errors are passed on as they are.
// Put it outside of [ServeStale], which counts the endpoints that there are,
// not those of a share. The cost of an update is that of sorting all endpoints.
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
			var said, known Set
			var lost bool
			for u, err := range r.Resolve(ctx, target) {
				if err == nil {
					said.Apply(u)
					var changed bool
					u, changed = part(&known, &said, p.choose(&said))
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

// choose returns the endpoints that the peer uses.
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
	// A plain product could overflow: Peers is whatever the user says.
	hi, lo := bits.Mul64(uint64(p.Peer), uint64(n))
	start, _ := bits.Div64(hi, lo, uint64(p.Peers))
	chosen := make([]Endpoint, size)
	for i := range chosen {
		chosen[i] = s.byAddr[ring[(int(start)+i)%n].addr]
	}
	return chosen
}

// placeOf is the same in every process and every release, or clients of two
// releases would not share a ring. It is FNV-1a, and then the finalizer of
// SplitMix64, since FNV alone hardly mixes its last bytes into the high bits.
func placeOf(addr netip.AddrPort) uint64 {
	sum := fnv.New64a()
	text, _ := addr.AppendText(make([]byte, 0, 64)) // never fails
	_, _ = sum.Write(text)                          // never fails
	h := sum.Sum64()
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// part returns what makes known the chosen ones of what a source said, or false
// if it is that already.
func part(known, said *Set, chosen []Endpoint) (Update, bool) {
	switch said.State() {
	case StatePending:
		return Update{}, false
	case StateExists:
		return delta(known, Update{Kind: Replace, Endpoints: chosen})
	default:
		return delta(known, whole(said))
	}
}
