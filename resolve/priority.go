package resolve

import (
	"context"
	"iter"
	"slices"
)

// WithPriority returns a Resolver that gives each of r's endpoints the given Priority. It forwards
// errors. Together with [Merge] it makes a backup of another set:
//
//	resolve.Merge(local, resolve.WithPriority(remote, 1))
//
// Endpoints with a higher number get requests if too few of the lower ones are healthy; package
// balance documents the rule. WithPriority panics if r is nil.
func WithPriority(r Resolver, priority uint32) Resolver {
	requireResolvers(r)
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) {
			for u, err := range r.Resolve(ctx, target) {
				u.Endpoints = slices.Clone(u.Endpoints) // the update may be shared
				for i := range u.Endpoints {
					u.Endpoints[i].Priority = priority
				}
				if !yield(u, err) {
					return
				}
			}
		}
	})
}
