package sidecar

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeeper(t *testing.T) {
	const mib = 1 << 20
	type look struct {
		now held
		due bool
	}
	for name, looks := range map[string][]look{
		"little to do": {
			{held{20 * mib, 50, 1}, false},
			{held{30 * mib, 400, 1}, false},
			{held{30 * mib, 50, 1}, false},
		},
		"a tide that no look saw": {
			{held{120 * mib, 50, 4}, false}, // collecting, just now
			{held{120 * mib, 50, 4}, true},
			{held{25 * mib, 50, 6}, false}, // what was returned
			{held{25 * mib, 50, 6}, false},
		},
		"a long tide": {
			{held{150 * mib, 10_000, 4}, false},
			{held{150 * mib, 10_000, 4}, true},
			{held{140 * mib, 10_000, 6}, false}, // they are in use
			{held{140 * mib, 10_000, 6}, false},
			{held{142 * mib, 6_000, 6}, false},
			{held{142 * mib, 50, 6}, true},
			{held{25 * mib, 50, 8}, false},
			{held{25 * mib, 50, 8}, false},
		},
		"much to do": {
			{held{120 * mib, 10_000, 4}, false},
			{held{150 * mib, 50, 9}, false},
			{held{150 * mib, 50, 17}, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin := held{20 * mib, 50, 1}
			k := keeper{last: begin, kept: begin}
			returned := false
			for i, l := range looks {
				if returned {
					k.returned(l.now)
					returned = false
					continue
				}
				returned = k.look(l.now)
				assert.Equal(t, l.due, returned, "look %d", i)
			}
		})
	}
}

func TestHolding(t *testing.T) {
	now := holding()
	require.Greater(t, now.memory, uint64(1<<20))
	require.GreaterOrEqual(t, now.goroutines, uint64(2))
}
