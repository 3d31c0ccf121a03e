package sidecar

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMemoryReturner(t *testing.T) {
	const mib = 1 << 20
	type look struct {
		now usage
		due bool
	}
	for name, looks := range map[string][]look{
		"little work": {
			{usage{20 * mib, 50, 1 * mib}, false},
			{usage{30 * mib, 400, 2 * mib}, false},
			{usage{30 * mib, 50, 3 * mib}, false},
		},
		"a peak between two checks": {
			{usage{120 * mib, 50, 100 * mib}, false}, // allocating
			{usage{120 * mib, 50, 101 * mib}, true},
			{usage{25 * mib, 50, 101 * mib}, false}, // after the return
			{usage{25 * mib, 50, 102 * mib}, true},  // because the last return helped
			{usage{25 * mib, 50, 102 * mib}, false},
			{usage{25 * mib, 50, 103 * mib}, false},
		},
		"a long peak": {
			{usage{150 * mib, 10_000, 200 * mib}, false},
			{usage{150 * mib, 10_000, 201 * mib}, true},
			{usage{140 * mib, 10_000, 201 * mib}, false}, // in use
			{usage{140 * mib, 10_000, 202 * mib}, false},
			{usage{142 * mib, 6_000, 203 * mib}, false},
			{usage{142 * mib, 50, 204 * mib}, true},
			{usage{25 * mib, 50, 204 * mib}, false},
			{usage{25 * mib, 50, 205 * mib}, true},
			{usage{25 * mib, 50, 205 * mib}, false},
			{usage{25 * mib, 50, 206 * mib}, false},
		},
		"much work": {
			{usage{120 * mib, 10_000, 100 * mib}, false},
			{usage{150 * mib, 50, 200 * mib}, false},
			{usage{150 * mib, 50, 300 * mib}, false},
		},
		"much in use, little work": {
			{usage{150 * mib, 50, 100 * mib}, false},
			{usage{155 * mib, 50, 105 * mib}, true},
			{usage{105 * mib, 50, 105 * mib}, false},
			{usage{125 * mib, 50, 110 * mib}, true},
			{usage{120 * mib, 50, 110 * mib}, false},
			{usage{150 * mib, 50, 115 * mib}, false},
			{usage{190 * mib, 50, 120 * mib}, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin := usage{20 * mib, 50, 0}
			k := memoryReturner{last: begin, afterReturn: begin}
			returned := false
			for i, l := range looks {
				if returned {
					k.returned(l.now)
					returned = false
					continue
				}
				returned = k.isDue(l.now)
				assert.Equal(t, l.due, returned, "check %d", i)
			}
		})
	}
}

func TestCurrentUsage(t *testing.T) {
	now := currentUsage()
	require.Greater(t, now.memory, uint64(1<<20))
	require.GreaterOrEqual(t, now.goroutines, uint64(2))
	require.Positive(t, now.allocated)
}
