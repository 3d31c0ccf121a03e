package sidecar

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// checkInterval is how often memory usage is checked.
	checkInterval = 5 * time.Second
	// minReturn is the minimum growth of memory in bytes, since the last return, that
	// causes another return. A return costs some milliseconds of one core.
	minReturn = 16 << 20
	// reserve is the size in bytes of memory that is allocated but never used. The garbage
	// collector counts it as live memory, and therefore runs less often while the heap is
	// small. At 5000 requests per second, collections then delay fewer than 1 % of them.
	reserve = 24 << 20
	// manyGoroutines is a number of goroutines. If at least as many existed at the last
	// return of memory, memory is returned again when more than half of them have ended.
	// About 500 idle connections have this number of goroutines, and use 16 MiB.
	manyGoroutines = 1000
)

// returnMemory returns the memory of closed connections to the system, until ctx ends.
// Without this function, an idle proxy returns memory only after two minutes, at the next
// garbage collection, and then in small steps.
func returnMemory(ctx context.Context) {
	unused := make([]byte, reserve)
	defer runtime.KeepAlive(unused)
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	r := memoryReturner{last: currentUsage(), kept: currentUsage()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if r.isDue(currentUsage()) {
				debug.FreeOSMemory() // one collection; a sync.Pool is emptied by the next
				r.returned(currentUsage())
			}
		}
	}
}

// usage is the memory usage of the process at one time.
type usage struct {
	memory     uint64 // bytes obtained from the system and not returned
	goroutines uint64
	allocated  uint64 // total bytes allocated since the start
}

// currentUsage reads the usage from the Go runtime.
func currentUsage() usage {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/sched/goroutines:goroutines"},
		{Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	return usage{
		memory:     samples[0].Value.Uint64() - samples[1].Value.Uint64(),
		goroutines: samples[2].Value.Uint64(),
		allocated:  samples[3].Value.Uint64(),
	}
}

// memoryReturner decides when memory is returned to the system. It compares the usage with
// earlier usage.
type memoryReturner struct {
	last   usage // at the last check
	kept   usage // when memory was last returned
	helped bool  // the last return freed an eighth of the memory
}

// isDue reports whether memory should be returned now. It records current, the current
// usage, as the usage at the last check. The result is false if the proxy has allocated
// much since the last check, because a garbage collection then comes soon anyway. Otherwise
// it is true if one of these conditions holds:
//
//   - Since the last return, memory has grown by half, and by at least minReturn.
//   - At the last return there were at least manyGoroutines, and more than half have ended.
//   - The last return freed an eighth of the memory. Another return may then free more, because
//     a collection halves the stack of an idle goroutine, but does not free it.
func (r *memoryReturner) isDue(current usage) bool {
	idle := current.allocated-r.last.allocated < current.memory/16
	r.last = current
	grown := current.memory > r.kept.memory+max(minReturn, r.kept.memory/2)
	fewer := r.kept.goroutines >= manyGoroutines && current.goroutines < r.kept.goroutines/2
	return idle && (grown || fewer || r.helped)
}

// returned records that memory was returned to the system. The argument left is the usage
// after that.
func (r *memoryReturner) returned(left usage) {
	r.helped = left.memory < r.last.memory-r.last.memory/8
	r.last, r.kept = left, left
}
