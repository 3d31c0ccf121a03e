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
// no set is seen that never was; so is the first answer.
//
// Errors are passed on as they are. The first answer after one is passed on even
// if it changes nothing, and then it is all that is known: it says that the
// error is over, which is news to [ServeStale].
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

// delta applies u to known and returns the least update that does the same, or
// false if nothing changed.
func delta(known *Set, u Update) (Update, bool) {
	d := known.Apply(u)
	switch {
	case !d.HasChanges():
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

// confirm makes news of an answer that changed nothing of what is known, if it
// is the first since the source was lost: whoever heard of that must hear that
// it is over.
func confirm(known *Set, lost *bool, u Update, changed bool) (Update, bool) {
	if *lost && !changed && known.State() != StatePending {
		u, changed = whole(known), true
	}
	*lost = *lost && !changed
	return u, changed
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
