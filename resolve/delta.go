package resolve

import (
	"net/netip"
	"slices"
)

// delta applies u to set, which holds the endpoints that the stream has yielded so far. It returns an
// update with the same effect that is as small as possible, so that a consumer has less to compare: an
// Add or a Remove if one suffices, and otherwise the whole set. It returns false if u changes nothing.
func delta(set *Set, u Update) (Update, bool) {
	d := set.Apply(u)
	switch {
	case !d.HasChanges():
		return Update{}, false
	// The target has appeared, disappeared or become empty, which an Add or a Remove cannot say.
	case d.After != StateExists || d.Before != StateExists:
		return whole(set), true
	}
	// Diff lists an endpoint whose ID has changed in Removed and in Added. Such an address stays: the
	// Add alone replaces its endpoint.
	removed := make([]netip.AddrPort, 0, len(d.Removed))
	for _, e := range d.Removed {
		// byAddr is the set after u.
		if _, stays := set.byAddr[e.Addr]; !stays {
			removed = append(removed, e.Addr)
		}
	}
	// For a consumer, Add means added or changed.
	added := slices.Concat(d.Added, d.Changed)
	switch {
	case len(removed) == 0:
		slices.SortFunc(added, byAddress)
		return Update{Kind: Add, Endpoints: added}, true
	case len(added) == 0:
		return Update{Kind: Remove, Removed: removed}, true
	}
	// Both kinds of changes are needed, but an update can only carry one.
	return whole(set), true
}

// confirm makes sure that an update follows each error, because a consumer takes an update as the sign
// that the error is over. u and changed are the results of delta. *lost reports whether an error was
// yielded since the last update.
//
// If *lost is true and changed is false, confirm returns the whole set and true, unless the set is
// pending, because then there is no answer yet. In all other cases it returns u and changed. If the
// second result is true, it sets *lost to false.
func confirm(set *Set, lost *bool, u Update, changed bool) (Update, bool) {
	// After an error, an unchanged answer is yielded too: it is what tells the consumer that the source works again.
	if *lost && !changed && set.State() != StatePending {
		u, changed = whole(set), true
	}
	*lost = *lost && !changed
	return u, changed
}

// whole returns the set s as one update, which replaces whatever a consumer has. s must not be pending.
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
