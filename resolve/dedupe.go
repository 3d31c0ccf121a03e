package resolve

import (
	"context"
	"iter"
	"net/netip"
	"slices"
)

// Dedupe returns a Resolver that yields only the changes of r: an Add of new or changed
// endpoints, or a Remove. A change that has both is yielded as one Replace, so that no
// intermediate set is visible. The first answer is a Replace, Empty or DoesNotExist.
//
// Errors are passed unchanged. The first answer after an error is yielded as the whole set,
// even if nothing has changed, because [ServeStale] needs to know that the error is over.
func Dedupe(r Resolver) Resolver {
	requireResolvers(r)
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) {
			var known Set
			var lost bool
			for u, err := range r.Resolve(ctx, target) {
				if err == nil {
					var changed bool
					u, changed = delta(&known, u)
					if u, changed = confirm(&known, &lost, u, changed); !changed {
						continue
					}
				}
				lost = lost || err != nil
				if !yield(u, err) {
					return
				}
			}
		}
	})
}

// delta applies u to known and returns the smallest update with the same effect. It
// returns false if u changes nothing.
func delta(known *Set, u Update) (Update, bool) {
	d := known.Apply(u)
	switch {
	case !d.HasChanges():
		return Update{}, false
	case d.After != StateExists || d.Before != StateExists:
		return whole(known), true
	}
	// An Add replaces the endpoint of an address.
	removed := make([]netip.AddrPort, 0, len(d.Removed))
	for _, e := range d.Removed {
		if _, stays := known.byAddr[e.Addr]; !stays {
			removed = append(removed, e.Addr)
		}
	}
	added := slices.Concat(d.Added, d.Changed)
	switch {
	case len(removed) == 0:
		slices.SortFunc(added, byAddress)
		return Update{Kind: Add, Endpoints: added}, true
	case len(added) == 0:
		return Update{Kind: Remove, Removed: removed}, true
	}
	return whole(known), true
}

// confirm returns u and changed, except for the first answer after an error: if that
// changes nothing, confirm returns the whole set and true.
func confirm(known *Set, lost *bool, u Update, changed bool) (Update, bool) {
	if *lost && !changed && known.State() != StatePending {
		u, changed = whole(known), true
	}
	*lost = *lost && !changed
	return u, changed
}

// whole returns the set s, which must not be pending, as one update.
func whole(s *Set) Update {
	switch s.State() {
	case StateExists:
		return Update{Kind: Replace, Endpoints: s.Endpoints()}
	case StateDoesNotExist:
		return Update{Kind: DoesNotExist}
	default:
		return Update{Kind: Empty}
	}
}
