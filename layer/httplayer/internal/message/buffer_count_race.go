//go:build race

package message

import (
	"runtime"
	"sync/atomic"
)

var buffersInUse atomic.Int64

// countBuffers adds n to the number of buffers in use. An atomic operation normally tells the race
// detector that one goroutine waits for another, which could hide a race, so it is disabled meanwhile.
func countBuffers(n int64) {
	runtime.RaceDisable()
	defer runtime.RaceEnable()
	buffersInUse.Add(n)
}

// BuffersInUse returns the number of buffers in use. A test fails if it is not 0 after all
// connections have ended.
func BuffersInUse() int64 { return buffersInUse.Load() }
