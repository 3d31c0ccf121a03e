package resolve

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is a Set that is too simple to be wrong: a list, and no diff.
type model struct {
	state State
	list  []Endpoint
}

func (m *model) apply(u Update) {
	take := func(addr netip.AddrPort) {
		m.list = slices.DeleteFunc(m.list, func(e Endpoint) bool { return e.Addr == addr })
	}
	switch u.Kind {
	case Replace:
		m.list, m.state = nil, StateEmpty
		fallthrough
	case Add:
		for _, e := range u.Endpoints {
			take(e.Addr)
			m.list = append(m.list, e)
		}
	case Remove:
		for _, a := range u.Removed {
			take(a)
		}
	case Empty:
		m.list, m.state = nil, StateEmpty
	case DoesNotExist:
		m.list, m.state = nil, StateDoesNotExist
	}
	if len(m.list) > 0 {
		m.state = StateExists
	} else if m.state == StateExists {
		m.state = StateEmpty
	}
}

func (m *model) endpoints() []Endpoint {
	slices.SortFunc(m.list, byAddress)
	return append([]Endpoint(nil), m.list...)
}

// mirror is what a consumer keeps that acts on nothing but diffs.
type mirror map[ID]Endpoint

func (m mirror) follow(t require.TestingT, d Diff) {
	for _, e := range d.Removed {
		require.Contains(t, m, e.ID, "removed a missing endpoint")
		require.True(t, m[e.ID].Equal(e), "removed is unchanged")
		delete(m, e.ID)
	}
	for _, e := range d.Added {
		require.NotContains(t, m, e.ID, "added an existing endpoint")
		m[e.ID] = e
	}
	for _, e := range d.Changed {
		require.Contains(t, m, e.ID, "changed a missing endpoint")
		require.False(t, m[e.ID].Equal(e), "changed without a change")
		m[e.ID] = e
	}
	for _, list := range [][]Endpoint{d.Added, d.Changed, d.Removed} {
		require.True(t, slices.IsSortedFunc(list, byAddress), "not in order: %v", list)
	}
}

// checkSet applies the updates to a Set, a model and a mirror, each of them
// twice, and compares.
func checkSet(t require.TestingT, updates []Update) {
	var (
		set    Set
		simple model
		copied = mirror{}
	)
	for _, u := range updates {
		before := simple.state
		simple.apply(u)
		d := set.Apply(u)
		copied.follow(t, d)

		require.Equal(t, before, d.Before)
		require.Equal(t, simple.state, d.After)
		require.Equal(t, simple.state, set.State())
		require.Equal(t, len(simple.list), set.Len())
		require.Equal(t, simple.endpoints(), set.Endpoints())
		require.Len(t, copied, set.Len())
		for _, e := range set.Endpoints() {
			require.True(t, copied[e.ID].Equal(e))
		}
		require.Equal(t, set.Len() > 0, set.State() == StateExists)

		again := set.Apply(u)
		require.False(t, again.HasChanges(), "%v twice changed %v", u, again)
		require.Equal(t, d.After, again.Before)
	}
}

func TestSetModel(t *testing.T) {
	someAddr := rapid.Custom(func(t *rapid.T) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteMax(5).Draw(t, "host")}), 80)
	})
	someEndpoint := rapid.Custom(func(t *rapid.T) Endpoint {
		e := Endpoint{
			ID:     ID{Addr: someAddr.Draw(t, "addr"), Protocol: rapid.SampledFrom([]Protocol{Unknown, H2}).Draw(t, "protocol")},
			Weight: rapid.Uint32Max(1).Draw(t, "weight"),
		}
		if rapid.Bool().Draw(t, "labelled") {
			e.Labels = map[string]string{"pod": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pod")}
		}
		return e
	})
	someUpdate := rapid.Custom(func(t *rapid.T) Update {
		return Update{
			Kind:      Kind(rapid.Uint8Max(6).Draw(t, "kind")),
			Endpoints: rapid.SliceOfN(someEndpoint, 0, 5).Draw(t, "endpoints"),
			Removed:   rapid.SliceOfN(someAddr, 0, 3).Draw(t, "removed"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		checkSet(t, rapid.SliceOfN(someUpdate, 0, 20).Draw(t, "updates"))
	})
}

func FuzzSet(f *testing.F) {
	f.Add([]byte{1, 2, 10, 20, 2, 1, 30, 3, 1, 10, 4, 0, 5, 0})
	f.Add([]byte{3, 1, 1, 2, 3, 7, 7, 135})
	f.Fuzz(func(t *testing.T, ops []byte) { checkSet(t, updatesOf(ops)) })
}

// updatesOf reads updates from bytes: a kind, a count, and a byte an endpoint.
func updatesOf(ops []byte) []Update {
	var updates []Update
	for len(ops) >= 2 && len(updates) < 64 {
		u, n := Update{Kind: Kind(ops[0] % 7)}, min(int(ops[1]%8), len(ops)-2)
		for _, b := range ops[2 : 2+n] {
			e := Endpoint{ID: ID{
				Addr:     netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, b % 8}), 80),
				Protocol: Protocol(b >> 7),
			}, Weight: uint32(b >> 5 & 1)}
			if b>>6&1 == 1 {
				e.Labels = map[string]string{"bit": "set"}
			}
			u.Endpoints = append(u.Endpoints, e)
			u.Removed = append(u.Removed, e.Addr)
		}
		updates, ops = append(updates, u), ops[2+n:]
	}
	return updates
}
