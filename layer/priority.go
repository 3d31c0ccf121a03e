package layer

import "context"

// Priority says which requests to refuse first when there is not room for all.
// It is ordered: the higher, the longer it is served. The zero value is
// [PriorityNormal].
type Priority int8

// The priorities.
const (
	PriorityBulk     Priority = iota - 2 // may come another day: batches, prefetching, crawlers
	PriorityLow                          // nobody waits for it, or it is tried again later
	PriorityNormal                       // what is not marked
	PriorityCritical                     // sign-in, payment, health: refused last; Shed says how seldom
)

// priorities is how many there are.
const priorities = int(PriorityCritical-PriorityBulk) + 1

// String returns "bulk", "low", "normal" or "critical".
func (p Priority) String() string {
	return [priorities]string{"bulk", "low", "normal", "critical"}[p.rank()]
}

// rank counts from 0, the lowest. What is out of range counts as the nearest.
func (p Priority) rank() int {
	return int(min(max(p, PriorityBulk), PriorityCritical) - PriorityBulk)
}

type priorityKey struct{}

// WithPriority returns a context that marks its requests with p. Whoever sets
// it decides who is refused first: never take it from a client that is not
// trusted to say so.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// PriorityFromContext returns the priority that ctx carries, or [PriorityNormal].
func PriorityFromContext(ctx context.Context) Priority {
	p, _ := ctx.Value(priorityKey{}).(Priority)
	return p
}
