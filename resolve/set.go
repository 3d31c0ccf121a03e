package resolve

import (
	"maps"
	"net/netip"
	"slices"
)

// State tells whether a target exists and has endpoints.
type State uint8

// A target's states.
const (
	StatePending      State = iota // no answer yet
	StateExists                    // there are endpoints
	StateEmpty                     // the target exists and has no endpoints
	StateDoesNotExist              // the target does not exist
)

// Set is the result of applying a sequence of updates: the current endpoints, at most one per
// address. The zero value is pending and ready to use. A Set is not safe for concurrent use.
type Set struct {
	state  State
	byAddr map[netip.AddrPort]*Endpoint // pointers, because a map of large values wastes memory
}

// Diff is the effect of one update. Its lists are sorted by address. Apply Removed before
// Added, because an address is in both lists if its [ID] changed.
type Diff struct {
	Before, After State
	Added         []Endpoint // endpoints with new IDs
	Changed       []Endpoint // endpoints with the same ID and other labels or weight
	Removed       []Endpoint // the last values of removed endpoints
}

// HasChanges reports whether the endpoints or the state changed.
func (d Diff) HasChanges() bool {
	return d.Before != d.After || len(d.Added)+len(d.Changed)+len(d.Removed) > 0
}

// Apply applies u and returns its effect.
//
// If a list in u contains an address twice, Apply uses the last entry. An Add replaces an
// endpoint that has the same address and another ID. A Remove removes the endpoint at an address
// regardless of its ID. If u removes the last endpoint, the state is StateEmpty. Before the first
// answer, a Remove and an Add without endpoints do nothing. The label maps in u are not copied.
func (s *Set) Apply(u Update) Diff {
	d := Diff{Before: s.state}
	switch u.Kind {
	case Replace:
		// put has recorded what is new or changed. What the list does not name is gone.
		named := s.put(u.Endpoints, &d)
		for addr := range s.byAddr {
			if _, ok := named[addr]; !ok {
				s.drop(addr, &d)
			}
		}
		// With endpoints, StateExists replaces this below.
		s.state = StateEmpty
	case Add:
		s.put(u.Endpoints, &d)
	case Remove:
		for _, addr := range u.Removed {
			s.drop(addr, &d)
		}
	case Empty:
		s.clear(&d, StateEmpty)
	case DoesNotExist:
		s.clear(&d, StateDoesNotExist)
	}
	// Only here, because Add and Remove may also have made the set non-empty or empty.
	switch {
	case len(s.byAddr) > 0:
		s.state = StateExists
	case s.state == StateExists:
		s.state = StateEmpty
	}
	d.After = s.state
	// A map's order is random. Equal updates must give equal diffs.
	for _, list := range [][]Endpoint{d.Added, d.Changed, d.Removed} {
		slices.SortFunc(list, byAddress)
	}
	return d
}

// clear removes all endpoints, adds them to d.Removed, and sets the state to now.
func (s *Set) clear(d *Diff, now State) {
	for addr := range s.byAddr {
		s.drop(addr, d)
	}
	s.state = now
}

// put adds endpoints to the set, and replaces those with the same addresses. It adds the changes to d.
// It returns endpoints as a map by address, because for a Replace the caller then removes the endpoints
// that are not in this map.
func (s *Set) put(endpoints []Endpoint, d *Diff) map[netip.AddrPort]*Endpoint {
	// A map first: of entries with the same address only the last one counts.
	named := make(map[netip.AddrPort]*Endpoint, len(endpoints))
	for i := range endpoints {
		named[endpoints[i].Addr] = &endpoints[i]
	}
	if s.byAddr == nil {
		s.byAddr = make(map[netip.AddrPort]*Endpoint, len(named))
	}
	for addr, e := range named {
		old := s.byAddr[addr]
		switch {
		case old == nil:
			d.Added = append(d.Added, *e)
		case old.ID != e.ID:
			// A new identity at a known address is another endpoint: its connections must not be
			// reused.
			d.Removed = append(d.Removed, *old)
			d.Added = append(d.Added, *e)
		case !old.Equal(*e):
			d.Changed = append(d.Changed, *e)
		// Nothing has changed, so that the stored endpoint stays.
		default:
			continue
		}
		// A copy, because the set must not change if the caller modifies its slice.
		s.byAddr[addr] = new(*e)
	}
	return named
}

// drop removes the endpoint at addr, if there is one, and adds it to d.Removed.
func (s *Set) drop(addr netip.AddrPort, d *Diff) {
	if old := s.byAddr[addr]; old != nil {
		d.Removed = append(d.Removed, *old)
		delete(s.byAddr, addr)
	}
}

// State returns the target's state.
func (s *Set) State() State { return s.state }

// Len returns the number of endpoints.
func (s *Set) Len() int { return len(s.byAddr) }

// Endpoints returns a copy of the endpoints, sorted by address.
func (s *Set) Endpoints() []Endpoint {
	var endpoints []Endpoint //nolint:prealloc // nil without endpoints
	for _, e := range s.byAddr {
		endpoints = append(endpoints, *e)
	}
	slices.SortFunc(endpoints, byAddress)
	return endpoints
}

// byAddress orders two endpoints by their addresses, for the package slices.
func byAddress(a, b Endpoint) int { return a.Addr.Compare(b.Addr) }

// Equal reports whether all fields of e and o are equal.
func (e Endpoint) Equal(o Endpoint) bool {
	return e.ID == o.ID && e.Weight == o.Weight && e.Priority == o.Priority && e.Locality == o.Locality &&
		e.LocalityWeight == o.LocalityWeight && maps.Equal(e.Labels, o.Labels)
}
