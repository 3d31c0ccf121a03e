package balance_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// A rule of an application sees the ready endpoints, and decides.
func TestCustom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ss := servers(3)
		seen := 0
		rule := balance.Custom("highest port", func(r balance.PickRequest, ready []balance.Candidate) int {
			seen = len(ready)
			if r.HasAffinity {
				return -1
			}
			best := 0
			for i, c := range ready {
				if c.ID.Addr.Compare(ready[best].ID.Addr) > 0 && !c.Tried {
					best = i
				}
			}
			return best
		})
		p := newPool(t, balance.WithPolicy[*response](balance.Policy{Picker: rule}))
		p.add(ss...)
		for range 10 {
			require.NoError(t, p.send(t.Context()))
		}
		require.Equal(t, 3, seen)
		picks := func() (all []uint64) {
			for _, e := range p.Snapshot() {
				all = append(all, e.Picks)
			}
			return all
		}
		assert.Equal(t, []uint64{0, 0, 10}, picks())
		for range 10 { // an index out of range lets the zero Picker pick
			require.NoError(t, p.send(layer.WithAffinity(t.Context(), 1)))
		}
		assert.Less(t, picks()[2], uint64(20))
		assert.Contains(t, p.Describe().String(), "pick=highest port")
		ctx, _ := layer.Explain(t.Context())
		require.NoError(t, p.send(ctx))
	})
	assert.Panics(t, func() { balance.Custom("none", nil) })
}
