package layer

import (
	"context"
	"slices"
	"sync"

	"github.com/gotower/gotower/internal/reqctx"
)

// PickInfo is the part of a request's context for the layer that chooses an endpoint.
// It is one context value, so that all fields cost one look-up.
type PickInfo struct {
	Attempts     *Attempts    // endpoints already tried; nil if the request is sent at most once
	Explanation  *Explanation // records the reasons of the choice, if not nil
	Record       *Record      // collects facts about the request, if not nil
	Affinity     uint64       // equal for requests that should reach the same endpoint
	HasAffinity  bool
	PastBreakers bool // an open [Breaker] admits the request
}

type pickInfoKey struct{}

// PickInfoFromContext returns the PickInfo of ctx, or the zero value.
func PickInfoFromContext(ctx context.Context) PickInfo {
	if h, _ := ctx.Value(pickInfoKey{}).(*PickInfo); h != nil {
		return *h
	}
	return PickInfo{}
}

func withPickInfo(ctx context.Context, h PickInfo) context.Context {
	return reqctx.WithValue(ctx, pickInfoKey{}, &h)
}

// WithAttempts returns a context that carries t to the layers below.
func WithAttempts(ctx context.Context, t *Attempts) context.Context {
	h := PickInfoFromContext(ctx)
	h.Attempts = t
	return withPickInfo(ctx, h)
}

// WithAffinity returns a context whose request should reach the same endpoint as other
// requests with the same key. The key is a hash, for example of a user or a session.
// Only balancers with consistent hashing use it.
func WithAffinity(ctx context.Context, key uint64) context.Context {
	h := PickInfoFromContext(ctx)
	h.Affinity, h.HasAffinity = key, true
	return withPickInfo(ctx, h)
}

// PastBreakers returns a context whose request is admitted by an open [Breaker] without
// being counted. A balancer uses it if too few endpoints would be left.
func PastBreakers(ctx context.Context) context.Context {
	h := PickInfoFromContext(ctx)
	h.PastBreakers = true
	return withPickInfo(ctx, h)
}

// Explain returns a context in which layers record the reasons of their choices, and
// the Explanation that receives them. Each layer allocates for its record.
func Explain(ctx context.Context) (context.Context, *Explanation) {
	h := PickInfoFromContext(ctx)
	if h.Explanation == nil {
		h.Explanation = new(Explanation)
	}
	return withPickInfo(ctx, h), h.Explanation
}

// Priority determines which requests are rejected first under overload. Requests with
// lower values are rejected first. The zero value is [PriorityNormal].
type Priority int8

// The priorities, from the first to the last rejected.
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

// rank returns the index of p, from 0 for the lowest priority. Values out of range are
// replaced by the nearest priority.
func (p Priority) rank() int {
	return int(min(max(p, PriorityBulk), PriorityCritical) - PriorityBulk)
}

type priorityKey struct{}

// WithPriority returns a context with the priority p. Never accept p from an untrusted
// client, because it affects the requests of others.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return reqctx.WithValue(ctx, priorityKey{}, p)
}

// PriorityFromContext returns the priority of ctx, or [PriorityNormal].
func PriorityFromContext(ctx context.Context) Priority {
	p, _ := ctx.Value(priorityKey{}).(Priority)
	return p
}

// Route describes the choice of a router to the layers below it.
type Route struct {
	Name   string            // for display; may be empty
	Labels map[string]string // for metrics and tap; must not be modified
}

type routeKey struct{}

// WithRoute returns a context that carries r to the layers below. It reports the name of r
// to the [Record] of ctx.
func WithRoute(ctx context.Context, r *Route) context.Context {
	if r != nil {
		RecordFromContext(ctx).SetRoute(r.Name)
	}
	return reqctx.WithValue(ctx, routeKey{}, r)
}

// RouteFromContext returns the innermost route of ctx, or nil.
func RouteFromContext(ctx context.Context) *Route {
	r, _ := ctx.Value(routeKey{}).(*Route)
	return r
}

// Attempts is the set of endpoints to which a request was sent. A layer that may send a
// request more than once passes it to the layer that chooses an endpoint. It is safe
// for concurrent use, because hedges run concurrently.
type Attempts struct {
	mu   sync.Mutex
	seen []any
	room [2]any // avoids an allocation for few endpoints
}

// AttemptsFromContext returns the Attempts of ctx, or nil. A nil *Attempts is empty,
// and its methods may be called.
func AttemptsFromContext(ctx context.Context) *Attempts { return PickInfoFromContext(ctx).Attempts }

// attemptsContext is the context of a layer that may send a request more than once. It adds the
// set of tried endpoints to the caller's context, or uses that of an outer layer.
type attemptsContext struct {
	reqctx.Wrapper // wraps the caller's context

	tries Attempts
	hints PickInfo
}

// follow initializes c for a request with the context ctx.
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

// Add adds endpoint, which must be comparable. It does not allocate for a pointer.
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

// Has reports whether the request was sent to endpoint.
func (t *Attempts) Has(endpoint any) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.seen, endpoint)
}

// Len returns the number of endpoints.
func (t *Attempts) Len() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.seen)
}
