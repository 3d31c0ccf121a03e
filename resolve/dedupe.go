package resolve

import (
	"context"
	"iter"
	"net/netip"
	"slices"
)

// Dedupe makes a Resolver of r that passes on only what changes something, and
// of that only the change: an Add of what is new or other than it was, or a
// Remove of what is gone. What both adds and removes is one Replace, so that
// no set is seen that never was; so is the first answer. Errors are passed on
// as they are.
//
// It hides what r confirms. Put it outside of [KeepLastGood], which wants to
// see that.
func Dedupe(r Resolver) Resolver {
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) {
			var known Set
			for u, err := range r.Resolve(ctx, target) {
				if err == nil {
					var changed bool
					if u, changed = delta(&known, u); !changed {
						continue
					}
				}
				if !yield(u, err) {
					return
				}
			}
		}
	})
}

// delta applies u to known and returns the least update that does the same, or
// false if nothing changed.
func delta(known *Set, u Update) (Update, bool) {
	d := known.Apply(u)
	switch {
	case !d.Any():
		return Update{}, false
	case d.After != StateExists || d.Before != StateExists:
		return whole(known), true
	}
	// An Add takes the place of what had the address, whatever its ID.
	gone := make([]netip.AddrPort, 0, len(d.Removed))
	for _, e := range d.Removed {
		if _, stays := known.byAddr[e.Addr]; !stays {
			gone = append(gone, e.Addr)
		}
	}
	fresh := slices.Concat(d.Added, d.Changed)
	switch {
	case len(gone) == 0:
		slices.SortFunc(fresh, byAddress)
		return Update{Kind: Add, Endpoints: fresh}, true
	case len(fresh) == 0:
		return Update{Kind: Remove, Removed: gone}, true
	}
	return whole(known), true
}

// whole is a set as one update. The set must not be pending.
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
