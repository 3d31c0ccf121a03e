package balance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
)

// The apertures of 20 balancers that know their places include each of 3000 endpoints equally often.
// Random apertures do not.
func TestPeers(t *testing.T) {
	const clients, n = 20, 3000
	busiest := func(peer func(i int) balance.Peer) (most float64) {
		bubble(t, func(t *testing.T) {
			ss := servers(n)
			calls := 0
			for i := range clients {
				p := newPool(t, balance.WithPolicy[*response](balance.Policy{Peer: peer(i)}))
				p.add(ss...)
				p.load(t, 2000, time.Millisecond, ss[:1], patient)
				calls += 2000
			}
			for _, s := range ss {
				most = max(most, float64(s.calls.Load())*n/float64(calls))
			}
		})
		return most
	}
	random := busiest(func(int) balance.Peer { return balance.Peer{} })
	even := busiest(func(i int) balance.Peer { return balance.Peer{Index: i, Count: clients} })
	t.Logf("busiest endpoint: %.1f times the mean, and %.1f with known peers", random, even)
	require.Greater(t, random, 10.0)
	require.Less(t, even, 3.0)
}

// A change of the set or of the policy keeps the order.
func TestPeersChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Peer: balance.Peer{Index: 1, Count: 2}})), servers(100)
		p.add(ss...)
		inside := func() (n int) {
			for _, e := range p.Snapshot() {
				if !e.OutsideAperture {
					n++
				}
			}
			return n
		}
		require.Equal(t, 50, inside())
		p.remove(ss[:20]...)
		require.Equal(t, 40, inside())
		require.NoError(t, p.SetPolicy(balance.Policy{Peer: balance.Peer{Index: 3, Count: 4}}))
		require.Equal(t, 20, inside())
		p.add(ss[:20]...)
		require.Equal(t, 25, inside())
		require.NoError(t, p.send(t.Context()))
		require.ErrorContains(t, p.SetPolicy(balance.Policy{Peer: balance.Peer{Index: 4, Count: 4}}), "Peer")
	})
}
