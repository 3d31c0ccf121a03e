package balance

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The vectors were computed by another program. They must never change, because a rolling
// upgrade would have two owners for every key.
func TestRingPlaces(t *testing.T) {
	for _, c := range []struct {
		addr                string
		seed                uint64
		first, second, last uint64
	}{
		{"10.0.0.1:80", 0x529f5a4b643fa605, 0xdbbc907f21531a73, 0xdf1d561fbd00135a, 0xe35ef4ae52669f86},
		{"10.0.0.2:80", 0xbec88630da056af2, 0x430384be1c79a49d, 0x0d834d501ef66cc6, 0x8785da2a4511e5cd},
		{"[2001:db8::1]:443", 0x51b094282e71c022, 0xd74b2d1678753513, 0x24b232c84c5d512d, 0xb4a72b76727539a2},
		{"[fe80::1%eth0]:8080", 0x06aa087aa72ae11f, 0x12fdd6573628d2db, 0x167d63b6627cf73e, 0x423bdd9fcedc7a6f},
	} {
		s := seed(netip.MustParseAddrPort(c.addr))
		require.Equal(t, c.seed, s, c.addr)
		require.Equal(t, []uint64{c.first, c.second, c.last}, []uint64{place(s, 0), place(s, 1), place(s, 99)}, c.addr)
	}
	require.Equal(t, uint64(0xe220a8397b1dcdaf), place(0, 1), "the first output of SplitMix64 with seed 0")
	require.Equal(t, uint64(0x5692161d100b05e5), mix(1))
}

// The owners were computed by another program for the same three addresses.
func TestRingOwners(t *testing.T) {
	h := hashOf(t, 0, member(1, unit), member(2, unit), member(3, unit))
	for key, owner := range map[uint64]byte{0: 3, 1: 3, 2: 2, 3: 3, 42: 1, 1 << 63: 3, 0xdeadbeef: 1, math.MaxUint64: 1} {
		require.Equal(t, owner, h.pick(keyed(key)).id.Addr.Addr().As4()[3], "%x", key)
	}
}

func TestRingMappedAddress(t *testing.T) {
	require.Equal(t, seed(netip.MustParseAddrPort("10.0.0.1:80")), seed(netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")))
	require.NotEqual(t, seed(netip.MustParseAddrPort("10.0.0.1:80")), seed(netip.MustParseAddrPort("10.0.0.1:81")))
}

func TestRingPointsOfWeights(t *testing.T) {
	for weight, points := range map[float64]int{
		1: 100, 0.5: 50, 2.5: 250, 0.0001: 1, 0: 1, 64: 6400, 65: 6400, math.MaxFloat32: 6400, 1.0049: 100, 1.0051: 101,
	} {
		require.Equal(t, points, pointsOf(weight), "%v", weight)
	}
}

// ringShares returns the share of the ring of each endpoint, relative to its weight.
func ringShares(es []*endpoint) []float64 {
	type owned struct {
		at    uint64
		owner int
	}
	var ring []owned
	for i, e := range es {
		for p := range pointsOf(e.plainWeight()) {
			ring = append(ring, owned{place(seed(e.id.Addr), p), i})
		}
	}
	slices.SortFunc(ring, func(a, b owned) int { return cmp.Compare(a.at, b.at) })
	share := make([]float64, len(es))
	before := ring[len(ring)-1].at
	for _, o := range ring {
		share[o.owner] += float64(o.at-before) / (1 << 64) * float64(len(ring)) / float64(pointsOf(es[o.owner].plainWeight()))
		before = o.at
	}
	return share
}

// Shares of the ring with 100 points each, in units of the mean:
//
//	   n     least  5 %   95 %  greatest  deviation
//	  10     0.85   0.85  1.16  1.16      0.100
//	 100     0.73   0.87  1.15  1.25      0.095
//	1000     0.71   0.84  1.16  1.37      0.099
//
// An endpoint of twice the weight has twice that share.
func TestRingShares(t *testing.T) {
	for _, c := range []struct {
		n               int
		least, greatest float64
	}{{10, 0.7, 1.3}, {100, 0.7, 1.35}, {1000, 0.65, 1.4}} {
		shares := ringShares(members(c.n))
		var squares float64
		for _, s := range shares {
			squares += (s - 1) * (s - 1)
		}
		slices.Sort(shares)
		deviation := math.Sqrt(squares / float64(c.n))
		t.Logf("%6d     %.2f   %.2f  %.2f  %.2f      %.3f", c.n, shares[0], shares[c.n/20], shares[c.n-1-c.n/20], shares[c.n-1], deviation)
		require.Greater(t, shares[0], c.least, c.n)
		require.Less(t, shares[c.n-1], c.greatest, c.n)
		require.Less(t, deviation, 0.13, c.n)
	}
}

func TestRingWeights(t *testing.T) {
	var es []*endpoint
	for i := range 200 {
		es = append(es, member(i, uint32(i%4+1)*unit/2))
	}
	var sum [4]float64
	for i, s := range ringShares(es) {
		sum[i%4] += s / 50
	}
	for i, s := range sum {
		require.InDelta(t, 1, s, 0.05, "weight %v", float64(i+1)/2)
	}
}
