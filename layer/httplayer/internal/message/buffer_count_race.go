//go:build race

package message

import (
	"runtime"
	"sync/atomic"
)

var buffersInUse atomic.Int64

// countBuffers adds n to the number of buffers in use. It orders nothing, because that could hide a
// race.
func countBuffers(n int64) {
	runtime.RaceDisable()
	defer runtime.RaceEnable()
	buffersInUse.Add(n)
}

// BuffersInUse returns the number of buffers in use. A test fails if it is not 0 after
// the end of all connections.
func BuffersInUse() int64 { return buffersInUse.Load() }
