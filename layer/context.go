package layer

import (
	"context"
	"slices"
	"sync"

	"github.com/gotower/gotower/internal/reqctx"
)

// PickInfo holds the values in a context that layers need to choose an endpoint, such as the endpoints
// to avoid, and to report facts about the request. They are in one context value, so that reading all
// of them costs a single look-up.
type PickInfo struct {
	Attempts     *Attempts    // endpoints to which the request was sent; nil if it is sent at most once
	Explanation  *Explanation // receives the reasons of the choice; nil if they are not recorded
	Record       *Record      // receives facts about the request; nil if they are not collected
	Affinity     uint64       // requests with the same value should reach the same endpoint
	HasAffinity  bool         // whether Affinity is set
	PastBreakers bool         // an open [Breaker] must admit the request
	Copy         bool         // the request is a retry or a hedge, so Retry and Hedge must not send it again
}

// PickInfoFromContext returns ctx's PickInfo, or the zero value if there is none.
func PickInfoFromContext(ctx context.Context) PickInfo {
	if h, _ := ctx.Value(reqctx.PickInfoKey{}).(*PickInfo); h != nil {
		return *h
	}
	return PickInfo{}
}

// withPickInfo returns ctx with h in place of its PickInfo.
func withPickInfo(ctx context.Context, h PickInfo) context.Context {
	return reqctx.WithValue(ctx, reqctx.PickInfoKey{}, &h)
}

// WithAttempts returns a context with the set t of the endpoints to which the request was
// sent. A layer that chooses an endpoint avoids those in t, and adds its choice to t.
func WithAttempts(ctx context.Context, t *Attempts) context.Context {
	h := PickInfoFromContext(ctx)
	h.Attempts = t
	return withPickInfo(ctx, h)
}

// WithAffinity returns a context for a request that should reach the same endpoint as other
// requests with the same key. The key is a hash, for example of a user or a session. Balancers with
// consistent hashing choose the endpoint by it, and custom rules may do so. Other pick policies ignore
// it.
func WithAffinity(ctx context.Context, key uint64) context.Context {
	h := PickInfoFromContext(ctx)
	h.Affinity, h.HasAffinity = key, true
	return withPickInfo(ctx, h)
}

// PastBreakers returns a context for a request that an open [Breaker] must admit. Its success closes
// the breaker, and its failure changes nothing. A balancer uses it if too few other endpoints are ready.
func PastBreakers(ctx context.Context) context.Context {
	h := PickInfoFromContext(ctx)
	h.PastBreakers = true
	return withPickInfo(ctx, h)
}

// asCopy returns a context for an attempt after the first one, which is called a copy. The layers
// [Retry] and [Hedge] below it send a copy only once, because otherwise attempts would multiply.
func asCopy(ctx context.Context) context.Context {
	h := PickInfoFromContext(ctx)
	h.Copy = true
	return withPickInfo(ctx, h)
}

// Explain returns a context in which layers record why they chose as they did, and the
// [Explanation] that receives these records. Each record costs the layer an allocation. If ctx
// already carries an Explanation, Explain returns that one.
func Explain(ctx context.Context) (context.Context, *Explanation) {
	h := PickInfoFromContext(ctx)
	if h.Explanation == nil {
		h.Explanation = new(Explanation)
	}
	return withPickInfo(ctx, h), h.Explanation
}

// Priority determines which requests are rejected first under overload: those with the
// lowest value. The zero value is [PriorityNormal].
type Priority int8

// The priorities, in the order in which requests are rejected.
const (
	PriorityBulk     Priority = iota - 2 // can be repeated much later: batches, prefetching, crawlers
	PriorityLow                          // no user waits for it, or it will be repeated
	PriorityNormal                       // the default
	PriorityCritical                     // sign-in, payment, health checks
)

// priorities is the number of priorities.
const priorities = int(PriorityCritical-PriorityBulk) + 1

// String returns "bulk", "low", "normal" or "critical".
func (p Priority) String() string {
	return [priorities]string{"bulk", "low", "normal", "critical"}[p.rank()]
}

// rank returns p's place among the priorities, from 0 for the lowest. A value out of range counts as
// the nearest priority.
func (p Priority) rank() int {
	return int(min(max(p, PriorityBulk), PriorityCritical) - PriorityBulk)
}

// priorityKey is the context key of a request's priority.
type priorityKey struct{}

// WithPriority returns a context with the priority p. Never take p from an untrusted
// client, because it affects the requests of others.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return reqctx.WithValue(ctx, priorityKey{}, p)
}

// PriorityFromContext returns the priority of ctx. The default is [PriorityNormal].
func PriorityFromContext(ctx context.Context) Priority {
	p, _ := ctx.Value(priorityKey{}).(Priority)
	return p
}

// Route is the route that a router has chosen for a request. Layers below the router read it.
type Route struct {
	Name   string            // for display; may be empty
	Labels map[string]string // for metrics and tap; must not be modified
	Value  any               // of the program that made the route, for its own layers
}

// routeKey is the context key of a request's route.
type routeKey struct{}

// WithRoute returns a context that carries r to the layers below. If ctx carries a [Record],
// WithRoute also stores r's name in it.
func WithRoute(ctx context.Context, r *Route) context.Context {
	if r != nil {
		// If ctx is the context of a Retry, which has a field for the route, storing it there saves an allocation.
		RecordFromContext(ctx).SetRoute(r.Name)
		if a, ok := ctx.(*attempt); ok && a.route.CompareAndSwap(nil, r) {
			return a // without an allocation
		}
	}
	return reqctx.WithValue(ctx, routeKey{}, r)
}

// RouteFromContext returns the route that [WithRoute] stored in ctx, or nil. If several routers
// stored a route, it returns the last one.
func RouteFromContext(ctx context.Context) *Route {
	r, _ := ctx.Value(routeKey{}).(*Route)
	return r
}

// Attempts is the set of endpoints to which a request was sent. A layer that may send a
// request more than once, such as [Retry], creates it. The layer that chooses an endpoint,
// such as a balancer, adds endpoints and avoids those in the set. It is safe for concurrent
// use, because hedges run concurrently.
type Attempts struct {
	mu      sync.Mutex
	visited []any
	room    [2]any // avoids an allocation for few endpoints
}

// AttemptsFromContext returns ctx's Attempts, or nil. You may call methods on a nil *Attempts:
// Add does nothing, and the set is empty.
func AttemptsFromContext(ctx context.Context) *Attempts { return PickInfoFromContext(ctx).Attempts }

// attemptsContext is the context in which [Retry] and [Hedge] send a request. In one allocation, it
// holds the [PickInfo] for the layers below, and the [Attempts] unless an outer layer has already made
// some.
type attemptsContext struct {
	reqctx.Wrapper // wraps the caller's context

	tries Attempts
	hints PickInfo
}

// follow makes c a child of ctx, the context with which the layer was called. c carries ctx's PickInfo,
// with ctx's Attempts or, if there are none, with new ones.
func (c *attemptsContext) follow(ctx context.Context) {
	c.Context, c.hints = ctx, PickInfoFromContext(ctx)
	if c.hints.Attempts == nil {
		c.hints.Attempts = &c.tries
	}
}

// Value returns c's own PickInfo, and otherwise the value in the caller's context.
func (c *attemptsContext) Value(key any) any {
	if key == (reqctx.PickInfoKey{}) {
		return &c.hints
	}
	return c.Context.Value(key)
}

// Add adds endpoint to the set. The endpoint must be comparable. If it is a pointer, Add
// does not allocate.
func (t *Attempts) Add(endpoint any) {
	// A context without Attempts has nil, and nothing is recorded.
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// The first few endpoints fit in the array room, without an allocation.
	if t.visited == nil {
		t.visited = t.room[:0]
	}
	if !slices.Contains(t.visited, endpoint) {
		t.visited = append(t.visited, endpoint)
	}
}

// Has reports whether endpoint is in the set.
func (t *Attempts) Has(endpoint any) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.visited, endpoint)
}

// Len returns the number of endpoints in the set.
func (t *Attempts) Len() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.visited)
}
