package sidecar

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	checkInterval = 5 * time.Second

	// minReturn is the minimum memory that is worth a return, which costs some
	// milliseconds of one core.
	minReturn = 16 << 20
	// reserve is memory that is never used. The garbage collector counts it as live, and so
	// runs a third as often while the heap is small. It saves a tenth of the CPU of a request.
	reserve = 8 << 20
	// manyGoroutines is the number for 500 idle connections, which hold 16 MiB.
	manyGoroutines = 1000
)

// returnMemory returns the memory of ended connections to the system until ctx ends. Go
// does that only at its next collection, which for an idle proxy is after two minutes, and
// then in small steps.
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

// usage is the memory that the process has from the system.
type usage struct {
	memory     uint64 // bytes, without returned ones
	goroutines uint64
	allocated  uint64 // bytes since the start
}

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

// memoryReturner decides when to return memory.
type memoryReturner struct {
	last usage // at the last check
	kept usage // when memory was last returned
}

// isDue reports whether to return memory. Few bytes must have been allocated recently,
// because Go will otherwise collect soon. In addition, memory must have grown much since
// the last return, or most goroutines of that time must have ended. It is due at most
// twice as often as Go would collect.
func (r *memoryReturner) isDue(now usage) bool {
	idle := now.allocated-r.last.allocated < now.memory/16
	r.last = now
	grown := now.memory > r.kept.memory+max(minReturn, r.kept.memory/2)
	fewer := r.kept.goroutines >= manyGoroutines && now.goroutines < r.kept.goroutines/2
	return idle && (grown || fewer)
}

func (r *memoryReturner) returned(left usage) { r.last, r.kept = left, left }
