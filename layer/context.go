package layer

import (
	"context"
	"slices"
	"sync"
)

// PickInfo are what a request carries down to the layer that chooses an endpoint.
// They are one value of the context, so that a request that carries none costs
// one look.
type PickInfo struct {
	Attempts     *Attempts    // where it has been; nil: it is sent once
	Explanation  *Explanation // who wants to know how the choice was made; nil: nobody
	Affinity     uint64       // requests that are alike have the same
	HasAffinity  bool
	PastBreakers bool // an open [Breaker] admits the request
}

type hintsKey struct{}

// PickInfoFromContext returns what ctx carries. The zero value is that of a request that
// carries nothing.
func PickInfoFromContext(ctx context.Context) PickInfo {
	if h, _ := ctx.Value(hintsKey{}).(*PickInfo); h != nil {
		return *h
	}
	return PickInfo{}
}

func withHints(ctx context.Context, h PickInfo) context.Context {
	return context.WithValue(ctx, hintsKey{}, &h)
}

// WithAttempts returns a context that carries t to the layers below.
func WithAttempts(ctx context.Context, t *Attempts) context.Context {
	h := PickInfoFromContext(ctx)
	h.Attempts = t
	return withHints(ctx, h)
}

// WithAffinity returns a context whose request should go where others with the
// same key go: a hash of a user, a session or a cache key. Balancers that pick by
// consistent hashing follow it, others do not.
func WithAffinity(ctx context.Context, key uint64) context.Context {
	h := PickInfoFromContext(ctx)
	h.Affinity, h.HasAffinity = key, true
	return withHints(ctx, h)
}

// PastBreakers returns a context whose request an open [Breaker] admits, and does not
// count. A balancer uses it where too few endpoints would be left.
func PastBreakers(ctx context.Context) context.Context {
	h := PickInfoFromContext(ctx)
	h.PastBreakers = true
	return withHints(ctx, h)
}

// Explain returns a context in which every layer that makes a choice for the
// request says how, and the explanation that it says it to. It costs the layers
// some allocations: ask for the requests that are of interest.
func Explain(ctx context.Context) (context.Context, *Explanation) {
	h := PickInfoFromContext(ctx)
	if h.Explanation == nil {
		h.Explanation = new(Explanation)
	}
	return withHints(ctx, h), h.Explanation
}

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

// Route is what a router tells the layers below it of its choice.
type Route struct {
	Name   string            // for people; may be empty
	Labels map[string]string // for metrics and tap; not to be changed
}

type routeKey struct{}

// WithRoute returns a context that carries r to the layers below.
func WithRoute(ctx context.Context, r *Route) context.Context {
	return context.WithValue(ctx, routeKey{}, r)
}

// RouteFromContext returns the innermost route that ctx carries, or nil.
func RouteFromContext(ctx context.Context) *Route {
	r, _ := ctx.Value(routeKey{}).(*Route)
	return r
}

// Attempts is what a request that may be sent more than once carries down to the
// layer that chooses an endpoint: which ones it has been to already. It is
// safe for concurrent use, because hedges run side by side.
type Attempts struct {
	mu   sync.Mutex
	seen []any
	room [2]any // for the usual few without an allocation
}

// AttemptsFromContext returns what ctx carries, or nil, of which every method may be
// called: a request that is sent once has been nowhere.
func AttemptsFromContext(ctx context.Context) *Attempts { return PickInfoFromContext(ctx).Attempts }

// triesContext is the context of what may send a request more than once: the
// caller's, with a list of the endpoints that the request has been to. That of
// a layer further up goes before its own, so that there is one list, whoever
// sends the request again.
type triesContext struct {
	context.Context //nolint:containedctx // it is a context, made of the caller's

	tries Attempts
	hints PickInfo
}

// follow makes it the context of a request that comes with ctx.
func (c *triesContext) follow(ctx context.Context) {
	c.Context, c.hints = ctx, PickInfoFromContext(ctx)
	if c.hints.Attempts == nil {
		c.hints.Attempts = &c.tries
	}
}

func (c *triesContext) Value(key any) any {
	if key == (hintsKey{}) {
		return &c.hints
	}
	return c.Context.Value(key)
}

// Add says that the request was sent to endpoint, which must be comparable; a
// pointer costs no allocation.
func (t *Attempts) Add(endpoint any) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		t.seen = t.room[:0]
	}
	if !slices.Contains(t.seen, endpoint) {
		t.seen = append(t.seen, endpoint)
	}
}

// Has reports whether the request was sent to endpoint before.
func (t *Attempts) Has(endpoint any) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.seen, endpoint)
}

// Len is how many endpoints the request was sent to.
func (t *Attempts) Len() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.seen)
}
