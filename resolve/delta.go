package resolve

import (
	"net/netip"
	"slices"
)

// delta applies u to known, the set of the endpoints that the stream has yielded so far. It
// returns an update with the same effect: an Add or a Remove if one suffices, and otherwise the
// whole set. It returns false if u changes nothing.
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

// confirm decides whether to yield the update u. u and changed are the results of delta. *lost
// reports whether an error was yielded since the last update. If *lost is true and changed is
// false, confirm returns the whole set and true, because the update ends the error. It does not do
// so for a pending set, because such a set has no answer yet. In all other cases it returns u and
// changed. If the second result is true, it sets *lost to false.
func confirm(known *Set, lost *bool, u Update, changed bool) (Update, bool) {
	if *lost && !changed && known.State() != StatePending {
		u, changed = whole(known), true
	}
	*lost = *lost && !changed
	return u, changed
}

// whole returns the set s as one update. s must not be pending.
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
