package sidecar

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/gotower/gotower/examples/internal/resident"
)

const (
	// checkInterval is how often memory usage is checked.
	checkInterval = 5 * time.Second
	// minReturn is by how many bytes memory must grow until it is returned again. Returning it
	// costs some milliseconds of one core.
	minReturn = 4 << 20
	// reserve is the size in bytes of an allocation that is never used. The garbage collector
	// counts it as live memory, so it runs less often while the heap is small. In return, the heap
	// grows by about as many bytes in each pod. Without the reserve, a busy proxy uses about a
	// sixth more CPU time. Each MiB up to 6 saves a few percent, and another 18 MiB only about 1 %:
	// see "Memory" in BENCHMARKS.md. At 5000 requests per second, collections delay fewer than 1 %
	// of the requests.
	reserve = 6 << 20
	// unmapAfter is how many bytes a busy proxy allocates between two calls to resident.UnmapFiles. These
	// are about 30 000 requests, which cost some hundred times as much CPU time as the call.
	unmapAfter = 64 << 20
	// manyGoroutines is how many goroutines must have existed when memory was last returned, for it
	// to be returned again because more than half of them have ended. About 500 idle connections
	// use that many goroutines, and 16 MiB.
	manyGoroutines = 1000
)

// returnMemory returns memory that startup and closed connections no longer need to the system,
// until ctx ends. Without it, an idle proxy returns memory only after two minutes, at the next
// garbage collection, and then in small steps.
func returnMemory(ctx context.Context) {
	resident.UnmapFiles()
	unmapped := uint64(0) // bytes allocated before the last call to resident.UnmapFiles
	unused := make([]byte, reserve)
	defer runtime.KeepAlive(unused)
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	start := currentUsage()
	r := memoryReturner{last: start, afterReturn: start, helped: true} // startup leaves garbage
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			current := currentUsage()
			due := r.isDue(current)
			if due {
				debug.FreeOSMemory() // one collection; only the next one empties sync.Pools
				r.returned(currentUsage())
			}
			if due || current.allocated > unmapped+unmapAfter {
				resident.UnmapFiles()
				unmapped = current.allocated
			}
		}
	}
}

// usage is the process's memory usage at one time.
type usage struct {
	memory     uint64 // bytes obtained from the system and not returned
	goroutines uint64
	allocated  uint64 // total bytes allocated since the start
}

// currentUsage reads the usage from the Go runtime. memory leaves out what the runtime has returned to the system.
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

// memoryReturner decides when memory should be returned to the system, by comparing usage over
// time.
type memoryReturner struct {
	last        usage // at the last check
	afterReturn usage // when memory was last returned
	helped      bool  // the last return freed at least an eighth of the memory
}

// isDue reports whether memory should be returned now. It remembers current for the next check. If
// the proxy has allocated much since the last check, the answer is no, because a garbage collection
// comes soon anyway. Otherwise any of these is a reason:
//
//   - Memory has grown by half since the last return, and by at least minReturn.
//   - There were at least manyGoroutines at the last return, and more than half have ended.
//   - The last return freed an eighth of the memory. Another one may free more, because a
//     collection only halves an idle goroutine's stack.
func (r *memoryReturner) isDue(current usage) bool {
	// Little was allocated since the last check: less than a sixteenth of the memory.
	idle := current.allocated-r.last.allocated < current.memory/16
	r.last = current
	// The threshold grows with the memory, because returning a small part of a large heap is not worth its cost.
	grown := current.memory > r.afterReturn.memory+max(minReturn, r.afterReturn.memory/2)
	// Goroutines that have ended leave their stacks and buffers behind.
	fewer := r.afterReturn.goroutines >= manyGoroutines && current.goroutines < r.afterReturn.goroutines/2
	return idle && (grown || fewer || r.helped)
}

// returned records that memory was returned to the system, with the usage after that.
func (r *memoryReturner) returned(remaining usage) {
	r.helped = remaining.memory < r.last.memory-r.last.memory/8
	r.last = remaining
	r.afterReturn = remaining
}
