package resolve

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hosts are n endpoints of one subnet, as neighbours have it in a cluster.
func hosts(n int) []Endpoint {
	list := make([]Endpoint, n)
	for i := range list {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		list[i] = Endpoint{ID: ID{Addr: netip.AddrPortFrom(addr, 80)}, Weight: uint32(i)}
	}
	return list
}

func setOf(list []Endpoint) *Set {
	var s Set
	s.Apply(Update{Kind: Replace, Endpoints: list})
	return &s
}

// used returns, by peer, what addresses it uses.
func used(list []Endpoint, p SubsetPolicy) []map[netip.AddrPort]bool {
	s := setOf(list)
	subsets := make([]map[netip.AddrPort]bool, p.Peers)
	for p.Peer = range p.Peers {
		subsets[p.Peer] = make(map[netip.AddrPort]bool)
		for _, e := range p.choose(s) {
			subsets[p.Peer][e.Addr] = true
		}
	}
	return subsets
}

func TestSubsetEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := hosts(rapid.IntRange(1, 120).Draw(t, "endpoints"))
		p := SubsetPolicy{
			Peers: rapid.IntRange(1, 60).Draw(t, "peers"),
			Size:  rapid.IntRange(1, 40).Draw(t, "size"),
		}
		peers := make(map[netip.AddrPort]int)
		size := max(p.Size, int(math.Ceil(float64(len(list))/float64(p.Peers))))
		for peer, subset := range used(list, p) {
			require.Len(t, subset, min(size, len(list)), "peer %d", peer)
			for addr := range subset {
				peers[addr]++
			}
		}
		mean := float64(min(size, len(list))*p.Peers) / float64(len(list))
		for _, e := range list {
			require.GreaterOrEqual(t, peers[e.Addr], max(1, int(math.Floor(mean))), e.Addr)
			require.LessOrEqual(t, peers[e.Addr], int(math.Ceil(mean)), e.Addr)
		}
	})
}

// moved returns the number of dropped and of added endpoints that are in both sets.
func moved(before, after map[netip.AddrPort]bool, other netip.AddrPort) (gone, fresh int) {
	for addr := range before {
		if !after[addr] && addr != other {
			gone++
		}
	}
	for addr := range after {
		if !before[addr] && addr != other {
			fresh++
		}
	}
	return gone, fresh
}

func TestSubsetChangeOfPeer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := hosts(rapid.IntRange(2, 120).Draw(t, "endpoints"))
		p := SubsetPolicy{
			Peers: rapid.IntRange(1, 60).Draw(t, "peers"),
			Size:  rapid.IntRange(1, 40).Draw(t, "size"),
		}
		one := rapid.IntRange(0, len(list)-1).Draw(t, "one")
		without := used(slices.Delete(slices.Clone(list), one, one+1), p)
		for peer, with := range used(list, p) {
			// With the two swapped, it is what an endpoint that comes changes.
			gone, fresh := moved(with, without[peer], list[one].Addr)
			require.LessOrEqual(t, gone, 2, "let go by peer %d", peer)
			require.LessOrEqual(t, fresh, 2, "taken up by peer %d", peer)
		}
	})
}

func TestSubsetChangedPeers(t *testing.T) {
	for _, tt := range []SubsetPolicy{
		{Peers: 20, Size: 12}, {Peers: 25, Size: 5}, {Peers: 30, Size: 7}, {Peers: 60, Size: 6}, {Peers: 97, Size: 12},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			list := hosts(60)
			before := used(list, tt)
			changed, rest := 0, 0
			for n := range list {
				after := used(slices.Delete(slices.Clone(list), n, n+1), tt)
				for peer := range before {
					gone, fresh := moved(before[peer], after[peer], list[n].Addr)
					if before[peer][list[n].Addr] {
						continue
					}
					rest++
					if gone+fresh > 0 {
						changed++
					}
				}
			}
			assert.InDelta(t, 0.35, float64(changed)/float64(rest), 0.15)
		})
	}
}

func TestSubsetPolicyOutOfRange(t *testing.T) {
	list := hosts(100)
	choose := func(p SubsetPolicy) []Endpoint {
		got := followed(t.Context(), Subset(saying(Update{Kind: Replace, Endpoints: list}), p))
		require.Len(t, got.updates, 1)
		return got.set.Endpoints()
	}
	third := choose(SubsetPolicy{Peer: 3, Peers: 10, Size: 20})
	assert.Len(t, third, 20)
	assert.Equal(t, third, choose(SubsetPolicy{Peer: 13, Peers: 10, Size: 20}))
	assert.Equal(t, third, choose(SubsetPolicy{Peer: -7, Peers: 10, Size: 20}))
	assert.NotEqual(t, third, choose(SubsetPolicy{Peer: 4, Peers: 10, Size: 20}))
	assert.Len(t, choose(SubsetPolicy{Peers: 10}), 12)
	assert.Len(t, choose(SubsetPolicy{Peers: 3, Size: 20}), 34, "no endpoint without a peer")
	assert.Len(t, choose(SubsetPolicy{Peers: 10, Size: -1}), 12)
	assert.Equal(t, list, choose(SubsetPolicy{}))
	assert.Equal(t, list, choose(SubsetPolicy{Peers: -1, Size: 3}))
	assert.Equal(t, list, choose(SubsetPolicy{Peer: 4, Peers: 10, Size: 100}))
	assert.Len(t, choose(SubsetPolicy{Peer: math.MaxInt - 1, Peers: math.MaxInt, Size: 3}), 3)
	assert.Len(t, choose(SubsetPolicy{Peer: math.MaxInt, Peers: 10, Size: 20}), 20)
	assert.Len(t, choose(SubsetPolicy{Peer: math.MinInt, Peers: math.MaxInt, Size: 3}), 3)
}

// The places must not change between releases, because clients of both share a ring.
func TestSubsetVectors(t *testing.T) {
	var got []string
	for _, e := range (SubsetPolicy{Peer: 1, Peers: 4, Size: 3}).choose(setOf(hosts(12))) {
		got = append(got, e.Addr.String())
	}
	assert.Equal(t, []string{"10.0.0.2:80", "10.0.0.4:80", "10.0.0.0:80"}, got)
}

// saying is a resolver that says this, then an error, and ends.
func saying(updates ...Update) Resolver {
	items := make([]item, 0, len(updates)+1)
	for _, u := range updates {
		items = append(items, news(u))
	}
	return &streams{lists: [][]item{append(items, item{err: errLost})}}
}

// followed reads a stream to its end.
func followed(ctx context.Context, r Resolver) *consumer {
	c := &consumer{}
	for u, err := range r.Resolve(ctx, "web") {
		c.take(u, err)
	}
	return c
}

func TestSubsetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := SubsetPolicy{Peer: rapid.IntRange(0, 2).Draw(t, "peer"), Peers: 3, Size: rapid.IntRange(1, 3).Draw(t, "size")}
		var source, want model
		var updates []Update
		for _, s := range someSteps(2).Draw(t, "steps") {
			if s.err == nil && s.wait == 0 {
				updates = append(updates, s.update)
			}
		}
		got := followed(t.Context(), Subset(saying(updates...), p))
		require.Len(t, got.errs, 1)
		require.ErrorIs(t, got.errs[0], errLost)
		changes := 0
		for _, u := range updates {
			source.apply(u)
			now := model{state: source.state, list: p.choose(setOf(source.endpoints()))}
			if now.state != want.state || !slices.EqualFunc(now.endpoints(), want.endpoints(), Endpoint.Equal) {
				changes++
			}
			want = now
		}
		require.NoError(t, differs(&got.set, &want))
		require.Len(t, got.updates, changes, "one update for each change")
		require.Zero(t, got.idle)
	})
}
