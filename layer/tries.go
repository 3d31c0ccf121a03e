package layer

import (
	"context"
	"slices"
	"sync"
)

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
