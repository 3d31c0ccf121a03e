package balance

import (
	"cmp"
	"hash/fnv"
	"math"
	"net/netip"

	"github.com/gotower/gotower/resolve"
)

// The places on the ring are a promise: processes and releases agree on them,
// so that a key has the same endpoint everywhere.
//
//	seed of an endpoint   FNV-1a, 64 bits, of its address as text: "10.0.0.1:80", "[2001:db8::1]:80"
//	its i-th point        mix(seed + i·γ), the first 40 bits
//	a key                 mix(key), likewise
//
// mix and γ are those of SplitMix64 (Steele, Lea, Flood, "Fast Splittable
// Pseudorandom Number Generators", 2014): the points of an endpoint are the
// output of that generator. Nothing but the address counts, so that an endpoint
// whose identity or protocol changes keeps its keys.
const gamma = 0x9e3779b97f4a7c15

// perUnit is how many points an endpoint of weight 1 has. The share of the
// keys that falls to one deviates by 1/√points: with 100, nine of ten endpoints
// are within 16 % of the mean, and the first of a thousand has 1.37 times as
// many (see TestShareOfTheRing). What the bound does not allow, it cuts off: to
// halve the deviation takes four times the points. One takes 13 to 32 bytes.
const perUnit = 100

// heaviest is the weight above which an endpoint gets no more points: it would
// hold up the others.
const heaviest = 64

// pointsOf is how many points a weight is worth; it is the weight that counts
// for the bound as well.
func pointsOf(weight float64) int {
	return max(1, int(math.Round(min(weight, heaviest)*perUnit)))
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seed is that of the places of an endpoint. An IPv4 address is the same in
// IPv6's clothes.
func seed(addr netip.AddrPort) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).AppendTo(nil)) // never fails
	return h.Sum64()
}

func place(seed uint64, i int) uint64 { return mix(seed + uint64(i)*gamma) }

func compareIDs(a, b resolve.ID) int {
	return cmp.Or(
		a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.ServerName, b.ServerName),
		cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Authority, b.Authority), cmp.Compare(a.OpaquePort, b.OpaquePort),
	)
}
