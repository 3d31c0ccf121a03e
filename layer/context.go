package layer

import (
	"context"
	"slices"
	"sync"

	"github.com/gotower/gotower/internal/reqctx"
)

// PickInfo has the values of a context that concern the choice of an endpoint, such as the
// endpoints to avoid. It also has the receivers of records about the choice and the request.
// Balancers and other layers read them. All are in one context value, so that reading them costs
// one look-up.
type PickInfo struct {
	Attempts     *Attempts    // endpoints to which the request was sent; nil if it is sent at most once
	Explanation  *Explanation // receives the reasons of the choice; nil if they are not recorded
	Record       *Record      // receives facts about the request; nil if they are not collected
	Affinity     uint64       // requests with the same value should reach the same endpoint
	HasAffinity  bool         // whether Affinity is set
	PastBreakers bool         // an open [Breaker] must admit the request
}

type pickInfoKey struct{}

// PickInfoFromContext returns the PickInfo of ctx, or the zero value if ctx has none.
func PickInfoFromContext(ctx context.Context) PickInfo {
	if h, _ := ctx.Value(pickInfoKey{}).(*PickInfo); h != nil {
		return *h
	}
	return PickInfo{}
}

func withPickInfo(ctx context.Context, h PickInfo) context.Context {
	return reqctx.WithValue(ctx, pickInfoKey{}, &h)
}

// WithAttempts returns a context with the set t of the endpoints to which the request was
// sent. A layer that chooses an endpoint avoids those in t, and adds its choice to t.
func WithAttempts(ctx context.Context, t *Attempts) context.Context {
	h := PickInfoFromContext(ctx)
	h.Attempts = t
	return withPickInfo(ctx, h)
}

// WithAffinity returns a context for a request that should reach the same endpoint as other
// requests with the same key. The key is a hash, for example of a user or a session. Only
// balancers with consistent hashing use it.
func WithAffinity(ctx context.Context, key uint64) context.Context {
	h := PickInfoFromContext(ctx)
	h.Affinity, h.HasAffinity = key, true
	return withPickInfo(ctx, h)
}

// PastBreakers returns a context for a request that an open [Breaker] must admit without
// counting its outcome. A balancer uses it if too few other endpoints are ready.
func PastBreakers(ctx context.Context) context.Context {
	h := PickInfoFromContext(ctx)
	h.PastBreakers = true
	return withPickInfo(ctx, h)
}

// Explain returns a context in which layers record the reasons of their choices. It also
// returns the [Explanation] that receives these records. Each record costs the layer an
// allocation. If ctx has an Explanation already, Explain returns that one.
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

// rank returns the index of p among the priorities, from 0 for the lowest one. If p is out
// of range, it returns the index of the nearest priority.
func (p Priority) rank() int {
	return int(min(max(p, PriorityBulk), PriorityCritical) - PriorityBulk)
}

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

// Route is the route that a router has chosen for a request. The layers below the router
// read it.
type Route struct {
	Name   string            // for display; may be empty
	Labels map[string]string // for metrics and tap; must not be modified
}

type routeKey struct{}

// WithRoute returns a context that carries r to the layers below. If ctx has a [Record],
// WithRoute also stores the name of r in it.
func WithRoute(ctx context.Context, r *Route) context.Context {
	if r != nil {
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
	mu   sync.Mutex
	seen []any
	room [2]any // avoids an allocation for few endpoints
}

// AttemptsFromContext returns the Attempts of ctx, or nil. The methods of a nil *Attempts
// may be called: Add does nothing, and the set is empty.
func AttemptsFromContext(ctx context.Context) *Attempts { return PickInfoFromContext(ctx).Attempts }

// attemptsContext is the context in which [Retry] and [Hedge] send a request. If the caller's
// context has [Attempts], the attemptsContext has the same Attempts. Otherwise it has new, empty
// Attempts.
type attemptsContext struct {
	reqctx.Wrapper // wraps the caller's context

	tries Attempts
	hints PickInfo
}

// follow makes c a child of ctx, the context with which the layer was called. If ctx has Attempts,
// c has the same ones. Otherwise c has the Attempts in its field tries.
func (c *attemptsContext) follow(ctx context.Context) {
	c.Context, c.hints = ctx, PickInfoFromContext(ctx)
	if c.hints.Attempts == nil {
		c.hints.Attempts = &c.tries
	}
}

func (c *attemptsContext) Value(key any) any {
	if key == (pickInfoKey{}) {
		return &c.hints
	}
	return c.Context.Value(key)
}

// Add adds endpoint to the set. The endpoint must be comparable. If it is a pointer, Add
// does not allocate.
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

// Has reports whether endpoint is in the set.
func (t *Attempts) Has(endpoint any) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.seen, endpoint)
}

// Len returns the number of endpoints in the set.
func (t *Attempts) Len() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.seen)
}
