package resolve

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func at(s string) Endpoint { return Endpoint{ID: ID{Addr: addr(s)}} }

func ends(addrs ...string) []Endpoint {
	var out []Endpoint
	for _, a := range addrs {
		out = append(out, at(a))
	}
	return out
}

const (
	a1 = "10.0.0.1:80"
	a2 = "10.0.0.2:80"
	a3 = "[fd00::3]:80"
)

func TestSetApply(t *testing.T) {
	h2 := at(a1)
	h2.Protocol = H2
	labelled := at(a1)
	labelled.Labels = map[string]string{"pod": "a"}
	heavy := at(a1)
	heavy.Weight = 20_000

	type step struct {
		update Update
		want   Diff
	}
	replace := func(e ...Endpoint) Update { return Update{Kind: Replace, Endpoints: e} }
	add := func(e ...Endpoint) Update { return Update{Kind: Add, Endpoints: e} }
	remove := func(addrs ...string) Update {
		u := Update{Kind: Remove}
		for _, a := range addrs {
			u.Removed = append(u.Removed, addr(a))
		}
		return u
	}
	for name, steps := range map[string][]step{
		"first answer": {
			{replace(at(a2), at(a1)), Diff{After: StateExists, Added: ends(a1, a2)}},
		},
		"first answer is an add": {
			{add(at(a1)), Diff{After: StateExists, Added: ends(a1)}},
		},
		"first answer is empty": {
			{Update{Kind: Empty}, Diff{After: StateEmpty}},
			{Update{Kind: Empty}, Diff{Before: StateEmpty, After: StateEmpty}},
			{Update{Kind: DoesNotExist}, Diff{Before: StateEmpty, After: StateDoesNotExist}},
			{Update{Kind: DoesNotExist}, Diff{Before: StateDoesNotExist, After: StateDoesNotExist}},
			{add(), Diff{Before: StateDoesNotExist, After: StateDoesNotExist}},
			{remove(a1), Diff{Before: StateDoesNotExist, After: StateDoesNotExist}},
			{replace(), Diff{Before: StateDoesNotExist, After: StateEmpty}},
		},
		"what is no answer": {
			{remove(a1), Diff{}},
			{add(), Diff{}},
			{Update{}, Diff{}},
			{Update{Kind: 99, Endpoints: ends(a1)}, Diff{}},
		},
		"add what is there": {
			{add(at(a1), at(a2)), Diff{After: StateExists, Added: ends(a1, a2)}},
			{add(at(a2)), Diff{Before: StateExists, After: StateExists}},
			{add(at(a2), at(a3)), Diff{Before: StateExists, After: StateExists, Added: ends(a3)}},
		},
		"remove": {
			{add(at(a1), at(a2)), Diff{After: StateExists, Added: ends(a1, a2)}},
			{remove(a3), Diff{Before: StateExists, After: StateExists}},
			{remove(a2, a2), Diff{Before: StateExists, After: StateExists, Removed: ends(a2)}},
			{remove(a1), Diff{Before: StateExists, After: StateEmpty, Removed: ends(a1)}},
			{remove(a1), Diff{Before: StateEmpty, After: StateEmpty}},
		},
		"replace": {
			{replace(at(a1), at(a2)), Diff{After: StateExists, Added: ends(a1, a2)}},
			{replace(at(a2), at(a1)), Diff{Before: StateExists, After: StateExists}},
			{replace(at(a3), at(a2)), Diff{Before: StateExists, After: StateExists, Added: ends(a3), Removed: ends(a1)}},
			{replace(), Diff{Before: StateExists, After: StateEmpty, Removed: ends(a2, a3)}},
		},
		"gone and back": {
			{replace(at(a1), at(a2)), Diff{After: StateExists, Added: ends(a1, a2)}},
			{Update{Kind: DoesNotExist}, Diff{Before: StateExists, After: StateDoesNotExist, Removed: ends(a1, a2)}},
			{add(at(a1)), Diff{Before: StateDoesNotExist, After: StateExists, Added: ends(a1)}},
			{Update{Kind: Empty}, Diff{Before: StateExists, After: StateEmpty, Removed: ends(a1)}},
		},
		"other labels and weight": {
			{add(at(a1)), Diff{After: StateExists, Added: ends(a1)}},
			{add(labelled), Diff{Before: StateExists, After: StateExists, Changed: []Endpoint{labelled}}},
			{replace(labelled), Diff{Before: StateExists, After: StateExists}},
			{replace(heavy), Diff{Before: StateExists, After: StateExists, Changed: []Endpoint{heavy}}},
		},
		"other ID at an address": {
			{add(at(a1)), Diff{After: StateExists, Added: ends(a1)}},
			{add(h2), Diff{Before: StateExists, After: StateExists, Added: []Endpoint{h2}, Removed: ends(a1)}},
			{remove(a1), Diff{Before: StateExists, After: StateEmpty, Removed: []Endpoint{h2}}},
		},
		"one address twice": {
			{add(at(a1), h2, heavy), Diff{After: StateExists, Added: []Endpoint{heavy}}},
			{replace(h2, heavy), Diff{Before: StateExists, After: StateExists}},
			{add(heavy, labelled, h2), Diff{
				Before: StateExists, After: StateExists, Added: []Endpoint{h2}, Removed: []Endpoint{heavy},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s Set
			for i, step := range steps {
				got := s.Apply(step.update)
				assert.Equal(t, step.want, got, "step %d: %v", i, step.update)
				assert.Equal(t, step.want.After, s.State())
				want := step.want
				assert.Equal(t, want.Before != want.After || want.Added != nil || want.Changed != nil || want.Removed != nil, got.HasChanges())
			}
		})
	}
}

func TestSetEndpoints(t *testing.T) {
	var s Set
	assert.Empty(t, s.Endpoints())
	s.Apply(Update{Kind: Add, Endpoints: ends(a3, a2, a1)})
	got := s.Endpoints()
	assert.Equal(t, ends(a1, a2, a3), got)
	assert.Equal(t, 3, s.Len())

	got[0] = at("10.9.9.9:9")
	assert.Equal(t, ends(a1, a2, a3), s.Endpoints())
}

// The producer owns the slices of an update.
func TestSetUpdateOwnership(t *testing.T) {
	var s Set
	update := Update{Kind: Replace, Endpoints: ends(a1, a2)}
	diff := s.Apply(update)
	update.Endpoints[0] = at(a3)
	assert.Equal(t, ends(a1, a2), s.Endpoints())
	assert.Equal(t, ends(a1, a2), diff.Added)
}

func BenchmarkSetReplaceOneOfTenThousand(b *testing.B) {
	sets := [2][]Endpoint{}
	for i := range 10_001 {
		e := Endpoint{ID: ID{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)}}
		if i != 0 {
			sets[0] = append(sets[0], e)
		}
		if i != 10_000 {
			sets[1] = append(sets[1], e)
		}
	}
	var s Set
	s.Apply(Update{Kind: Replace, Endpoints: sets[1]})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if d := s.Apply(Update{Kind: Replace, Endpoints: sets[i%2]}); len(d.Added) != 1 || len(d.Removed) != 1 {
			b.Fatal(d)
		}
	}
}
