package controller

import (
	"fmt"
	"maps"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func compiled(t require.TestingT, d Destination) *entry {
	entries, err := compile(one(web, d))
	require.NoError(t, err)
	return entries[web]
}

func TestDifference(t *testing.T) {
	heavy := plain(1, 80)
	heavy.Weight = 3
	set := map[string]string{"v": "2"}
	ab := Destination{Endpoints: endpointsAt("10.0.0.1:80", "10.0.0.2:80")}
	for _, c := range []struct {
		name     string
		old, now Destination
		want     []*pb.Update
	}{
		{"same", ab, ab, nil},
		{"other order", ab, Destination{Endpoints: endpointsAt("10.0.0.2:80", "10.0.0.1:80")}, nil},
		{"one more", Destination{Endpoints: endpointsAt("10.0.0.1:80")}, ab, []*pb.Update{addition(nil, plain(2, 80))}},
		{"one less", ab, Destination{Endpoints: endpointsAt("10.0.0.1:80")}, []*pb.Update{removal(tcp(2, 80))}},
		{"other weight", ab, Destination{Endpoints: []Endpoint{{Addr: addr("10.0.0.1:80"), Weight: 3}, {Addr: addr("10.0.0.2:80")}}}, []*pb.Update{addition(nil, heavy)}},
		{"all others", Destination{Endpoints: endpointsAt("10.0.0.3:80")}, ab, []*pb.Update{addition(nil, plain(1, 80), plain(2, 80)), removal(tcp(3, 80))}},
		{"labels of the set", ab, Destination{Labels: set, Endpoints: ab.Endpoints}, []*pb.Update{addition(set, plain(1, 80), plain(2, 80))}},
		{"emptied", ab, Destination{}, []*pb.Update{none(true)}},
		{"still empty", Destination{}, Destination{Labels: set}, nil},
		{"filled", Destination{}, ab, []*pb.Update{addition(nil, plain(1, 80), plain(2, 80))}},
		{"gone", ab, Destination{Absent: true}, []*pb.Update{none(false)}},
		{"gone, was empty", Destination{}, Destination{Absent: true}, []*pb.Update{none(false)}},
		{"still gone", Destination{Absent: true}, Destination{Absent: true}, nil},
		{"appears", Destination{Absent: true}, ab, []*pb.Update{addition(nil, plain(1, 80), plain(2, 80))}},
		{"appears, empty", Destination{Absent: true}, Destination{}, []*pb.Update{none(true)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := compiled(t, c.now).difference(compiled(t, c.old))
			require.Len(t, got, len(c.want))
			for i := range got {
				same(t, c.want[i], got[i])
			}
		})
	}
	var unconfigured *entry
	require.Empty(t, unconfigured.difference(nil))
	require.Empty(t, unconfigured.difference(compiled(t, Destination{Absent: true})))
}

// follower is a client as the API describes one: it applies updates to a set.
type follower struct {
	exists bool
	set    map[string]string // endpoint → its description, with the labels of its set
}

func (f *follower) apply(t require.TestingT, u *pb.Update) {
	switch u := u.GetUpdate().(type) {
	case *pb.Update_Add:
		f.exists = true
		for _, ep := range u.Add.GetAddrs() {
			f.set[ep.GetAddr().String()] = describe(u.Add.GetMetricLabels(), ep)
		}
	case *pb.Update_Remove:
		for _, a := range u.Remove.GetAddrs() {
			require.Contains(t, f.set, a.String(), "removed what was never added")
			delete(f.set, a.String())
		}
		require.NotEmpty(t, f.set, "a set was emptied without being called empty")
	case *pb.Update_NoEndpoints:
		f.exists = u.NoEndpoints.GetExists()
		clear(f.set)
	}
}

func describe(labels map[string]string, ep *pb.WeightedAddr) string {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, ep.GetMetricLabels())
	return fmt.Sprint(ep.GetWeight(), ep.GetProtocolHint() != nil, all)
}

// A stream that begins at any time has the configured state after each message.
func TestStreamState(t *testing.T) {
	label := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"x", "y"}), 0, 2)
	endpoint := rapid.Custom(func(t *rapid.T) Endpoint {
		return Endpoint{
			Addr:     addr(fmt.Sprintf("10.0.0.%d:80", rapid.IntRange(1, 5).Draw(t, "ip"))),
			Weight:   rapid.SampledFrom([]uint32{0, 1}).Draw(t, "weight"),
			Protocol: rapid.SampledFrom([]Protocol{Unknown, H2}).Draw(t, "protocol"),
			Labels:   label.Draw(t, "labels"),
		}
	})
	endpoints := rapid.SliceOfNDistinct(endpoint, 0, 5, func(e Endpoint) string { return e.Addr.String() })
	rapid.Check(t, func(t *rapid.T) {
		c := New(nil)
		defer c.Stop()
		followers := map[*subscription[*pb.Update]]*follower{}
		var state Destination
		known := false
		t.Repeat(map[string]func(*rapid.T){
			"join": func(*rapid.T) {
				followers[follow(c, c.updates, webTarget, func() *pb.Update { return c.entries[web].snapshot() })] = &follower{set: map[string]string{}}
			},
			"set": func(t *rapid.T) {
				state, known = Destination{Labels: label.Draw(t, "labels"), Endpoints: endpoints.Draw(t, "endpoints")}, true
				require.NoError(t, c.Set(one(web, state)))
			},
			"remove": func(t *rapid.T) {
				state, known = Destination{Absent: true}, true
				require.NoError(t, c.Set(Config{}))
			},
			"": func(t *rapid.T) {
				want := map[string]string{}
				for _, msg := range compiled(t, state).byAddr {
					want[msg.GetAddr().String()] = describe(state.Labels, msg)
				}
				for s, f := range followers {
					for len(s.queue) > 0 {
						f.apply(t, <-s.queue)
					}
					require.Equal(t, known && !state.Absent, f.exists)
					require.Equal(t, want, f.set)
				}
			},
		})
	})
}
