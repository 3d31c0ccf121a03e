package layer

import "context"

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
