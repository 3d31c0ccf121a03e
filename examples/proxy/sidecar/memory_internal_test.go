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
			{held{20 * mib, 50, 1 * mib}, false},
			{held{30 * mib, 400, 2 * mib}, false},
			{held{30 * mib, 50, 3 * mib}, false},
		},
		"a tide that no look saw": {
			{held{120 * mib, 50, 100 * mib}, false}, // allocating, just now
			{held{120 * mib, 50, 101 * mib}, true},
			{held{25 * mib, 50, 101 * mib}, false}, // what was returned
			{held{25 * mib, 50, 102 * mib}, false},
		},
		"a long tide": {
			{held{150 * mib, 10_000, 200 * mib}, false},
			{held{150 * mib, 10_000, 201 * mib}, true},
			{held{140 * mib, 10_000, 201 * mib}, false}, // they are in use
			{held{140 * mib, 10_000, 202 * mib}, false},
			{held{142 * mib, 6_000, 203 * mib}, false},
			{held{142 * mib, 50, 204 * mib}, true},
			{held{25 * mib, 50, 204 * mib}, false},
			{held{25 * mib, 50, 205 * mib}, false},
		},
		"much to do": {
			{held{120 * mib, 10_000, 100 * mib}, false},
			{held{150 * mib, 50, 200 * mib}, false},
			{held{150 * mib, 50, 300 * mib}, false},
		},
		"much in use, and a little to do": {
			{held{150 * mib, 50, 100 * mib}, false},
			{held{155 * mib, 50, 105 * mib}, true},
			{held{105 * mib, 50, 105 * mib}, false},
			{held{125 * mib, 50, 110 * mib}, false},
			{held{150 * mib, 50, 115 * mib}, false},
			{held{160 * mib, 50, 120 * mib}, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin := held{20 * mib, 50, 0}
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
	require.Positive(t, now.allocated)
}
