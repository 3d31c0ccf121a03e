package resolvetest

import (
	"fmt"
	"net/netip"

	"github.com/gotower/gotower/resolve"
)

// changes returns the checks about updates that follow the first answer of a stream.
func changes() []Check {
	return []Check{
		{
			Name:  "changes",
			Claim: "follow the source as endpoints are added and removed",
			run:   follow,
		},
		{
			Name:  "becomes empty",
			Claim: "yield that a target has no endpoints any more, and the new ones later",
			needs: []need{needEmpty},
			run:   func(g *rig) { g.vanish(g.Empty, resolve.StateEmpty) },
		},
		{
			Name:  "ceases to exist",
			Claim: "yield that a target does not exist any more, and the new endpoints later",
			needs: []need{needAbsent},
			run:   func(g *rig) { g.vanish(g.DoesNotExist, resolve.StateDoesNotExist) },
		},
		{
			Name:  "labels",
			Claim: "yield other labels or another weight of an endpoint",
			needs: []need{needRelabel},
			run: func(g *rig) {
				g.alter(g.Relabel, func(d resolve.Diff) bool {
					return len(d.Changed) == 1 && len(d.Added)+len(d.Removed) == 0
				})
			},
		},
		{
			Name:  "identity",
			Claim: "yield another ID at the same address",
			needs: []need{needRekey},
			run: func(g *rig) {
				g.alter(g.Rekey, func(d resolve.Diff) bool {
					return len(d.Added) == 1 && len(d.Removed) == 1 && len(d.Changed) == 0
				})
			},
		},
		{
			Name:  "redundant",
			Claim: "change nothing when the source repeats its endpoints in any order",
			run:   redundant,
		},
		{
			Name:  "backlog",
			Claim: "yield the latest set after any number of changes while the consumer was busy",
			run:   backlog,
		},
		{
			Name:  "messages",
			Claim: "accept incremental messages that are redundant, reordered or about unknown endpoints",
			needs: []need{needSend},
			run:   messages,
		},
	}
}

// follow checks that the stream follows sets that grow, shrink, and share nothing.
func follow(g *rig) {
	w := g.start(0, 1)
	for _, numbers := range [][]int{{0, 1, 2}, {1}, {3, 4}, {4, 3, 2, 1, 0}, {2}, {0, 1}} {
		g.set(numbers...)
		w.settle(resolve.StateExists, g.endpoints(numbers...)...)
	}
}

// vanish calls remove with the name of the target, all of whose endpoints remove must take away, and then
// adds endpoints. It checks that the target is in the given state in between. It does so twice, because
// the second time other endpoints disappear than the first time, those that were added in between.
func (g *rig) vanish(remove func(string), state resolve.State) {
	w := g.start(0, 1)
	for range 2 {
		remove(g.target())
		w.settle(state)
		g.set(1, 2)
		w.settle(resolve.StateExists, g.endpoints(1, 2)...)
	}
}

// alter changes one of two endpoints with change. It passes the resulting Diff to want. If want
// returns false, it records a violation.
func (g *rig) alter(change func(resolve.Endpoint) resolve.Endpoint, want func(resolve.Diff) bool) {
	w := g.start(0, 1)
	now := []resolve.Endpoint{g.Endpoint(0), change(g.Endpoint(1))}
	g.Set(g.target(), now...)
	// Updates without a change are allowed and skipped.
	for g.err == nil {
		diff, err := w.step()
		switch {
		case err != nil:
			g.failf("waiting for %v: %w", now, err)
		case diff.HasChanges() && !want(diff):
			g.failf("changing one endpoint changed %+v", diff)
		case diff.HasChanges():
			// The change was as wanted. The set must then hold the new fields too.
			w.settle(resolve.StateExists, now...)
			return
		}
	}
}

// redundant sets the same endpoints again: in the same order, in another order, and with a
// duplicate. It checks that nothing changes.
func redundant(g *rig) {
	w := g.start(0, 1, 2)
	g.set(0, 1, 2)
	g.set(2, 1, 0)
	g.set(1, 0, 2, 1)
	// A wrong update would be yielded before the real change.
	g.set(0, 1, 2, 3)
	// jump fails if anything but the last set is yielded.
	w.jump(resolve.StateExists, g.endpoints(0, 1, 2, 3)...)
}

// backlog changes the source many times while the consumer is busy with an item. It checks
// that the consumer then gets the latest set.
func backlog(g *rig) {
	w := g.start(0)
	// The consumer has not answered its last item, so the stream is blocked meanwhile.
	for n := range 20 {
		g.set(1 + n%8)
	}
	g.set(9)
	w.settle(resolve.StateExists, g.Endpoint(9))
	// No older set may follow the latest one.
	w.stays()
	g.set(9, 0)
	w.jump(resolve.StateExists, g.endpoints(9, 0)...)
}

// messages sends batches of incremental messages. After each batch it compares the stream's set
// with a resolve.Set that got the same messages.
func messages(g *rig) {
	// The numbers are those of the test endpoints.
	add := func(n ...int) resolve.Update { return resolve.Update{Kind: resolve.Add, Endpoints: g.endpoints(n...)} }
	remove := func(n ...int) resolve.Update {
		u := resolve.Update{Kind: resolve.Remove}
		for _, e := range g.endpoints(n...) {
			u.Removed = append(u.Removed, e.Addr)
		}
		return u
	}
	w := g.start(0, 1)
	var want resolve.Set
	want.Apply(resolve.Update{Kind: resolve.Replace, Endpoints: g.endpoints(0, 1)})
	// Each line is one batch. Most messages in it are redundant or name an unknown endpoint.
	for _, batch := range [][]resolve.Update{
		{add(1, 2)},
		{add(0, 1, 2), remove(7), remove(1)},
		{remove(1), remove(1, 7), add(3)},
		{remove(0, 2, 3), remove(0)}, // without endpoints: empty
		{remove(4), add(4), remove(4), add(5, 4, 5)},
		{{Kind: resolve.Empty}, {Kind: resolve.Empty}, add(1)},
		{{Kind: resolve.DoesNotExist}, {Kind: resolve.DoesNotExist}, remove(7)},
		{add(0), add(1), add(0)},
	} {
		for _, u := range batch {
			want.Apply(u)
			g.Send(g.target(), u)
		}
		// The last message of a batch may be redundant, so one that is not comes after it.
		want.Apply(add(9))
		g.Send(g.target(), add(9))
		g.during = fmt.Sprintf("after %v", batch)
		w.settle(want.State(), want.Endpoints()...)
		// Endpoint 9 is removed again, so that the next batch starts from what this one left.
		end := resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{g.Endpoint(9).Addr}}
		want.Apply(end)
		g.Send(g.target(), end)
		g.during = fmt.Sprintf("after %v, and 9 added and removed", batch)
		w.settle(want.State(), want.Endpoints()...)
	}
}
