package sidecar

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	lookEvery = 5 * time.Second

	// worthReturning is what a return is for, at least: it costs some milliseconds
	// of one core.
	worthReturning = 16 << 20
	// manyGoroutines is what 500 idle connections have, and these hold 16 MiB.
	manyGoroutines = 1000
)

// returnMemory returns to the system what ended connections have left behind,
// until ctx ends. Go by itself does it when it collects next, which for a proxy that
// has little to do then is after two minutes, and then little by little.
func returnMemory(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	k := keeper{last: holding(), kept: holding()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if k.look(holding()) {
				debug.FreeOSMemory() // one collection: what a sync.Pool holds goes with the next
				k.returned(holding())
			}
		}
	}
}

// held is what the process has from the system.
type held struct {
	memory     uint64 // bytes, without what was returned
	goroutines uint64
	allocated  uint64 // bytes, ever
}

func holding() held {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/sched/goroutines:goroutines"},
		{Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	return held{
		memory:     samples[0].Value.Uint64() - samples[1].Value.Uint64(),
		goroutines: samples[2].Value.Uint64(),
		allocated:  samples[3].Value.Uint64(),
	}
}

// keeper finds out when more is held than is needed.
type keeper struct {
	last held // at the last look
	kept held // when memory was last returned
}

// look reports whether to return memory: Go will not collect soon, for little is
// allocated, and there is much more than was kept, or most of what it was kept for
// has ended. It is at most twice as often as Go would collect, and so costs a busy
// process little.
func (k *keeper) look(now held) bool {
	idle := now.allocated-k.last.allocated < now.memory/16
	k.last = now
	more := now.memory > k.kept.memory+max(worthReturning, k.kept.memory/2)
	fewer := k.kept.goroutines >= manyGoroutines && now.goroutines < k.kept.goroutines/2
	return idle && (more || fewer)
}

func (k *keeper) returned(left held) { k.last, k.kept = left, left }
