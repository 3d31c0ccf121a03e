package emojivoto

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/backoff"
)

// replica holds the latency and the request counters of one gRPC server. All counters are created
// before the server starts, so that the map can be read without a lock.
type replica struct {
	delay  func() time.Duration
	counts map[string]*atomic.Uint64
}

// newReplica returns a replica with this latency. A nil delay means none.
func newReplica(delay func() time.Duration) replica {
	if delay == nil {
		delay = func() time.Duration { return 0 }
	}
	return replica{delay: delay, counts: make(map[string]*atomic.Uint64)}
}

// counter returns a new counter for the method. It may only be called before the server starts.
func (r *replica) counter(method string) *atomic.Uint64 {
	r.counts[method] = new(atomic.Uint64)
	return r.counts[method]
}

// pause waits for this replica's latency. It returns an error if ctx ends first.
func (r *replica) pause(ctx context.Context) error {
	d := r.delay()
	if d <= 0 {
		return nil
	}
	// Sleep returns its own error, but a client expects the gRPC code of ctx's error.
	if err := backoff.Sleep(ctx, d); err != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// Requests returns how many requests this replica has received, including failed and open ones.
func (r *replica) Requests() uint64 {
	var n uint64
	for _, c := range r.counts {
		n += c.Load()
	}
	return n
}

// Counts returns the number of requests by method, such as "VoteRocket". It omits methods
// without requests.
func (r *replica) Counts() map[string]uint64 {
	counts := make(map[string]uint64)
	for method, c := range r.counts {
		if n := c.Load(); n > 0 {
			counts[method] = n
		}
	}
	return counts
}
