package reliability

import (
	"runtime"
	"testing"
)

// heap returns the bytes in use after two collections.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

const mib = 1 << 20

// grown returns how much the heap has grown since before, for both ends together.
func grown(t testing.TB, before int64) float64 {
	t.Helper()
	return float64(heap()-before) / mib
}
