package outbound

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/profiles"
)

// sequence is a source that yields profiles and then ends.
type sequence []*profiles.Profile

func (s sequence) Watch(context.Context, string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		for _, p := range s {
			if !yield(p, nil) {
				return
			}
		}
	}
}

// The Values of a profile, its routes and its backends stay the same until its name or the labels of its policy change.
func TestDestinationValues(t *testing.T) {
	o := &Outbound{Config: Config{Meters: meters.New(meters.Config{})}}
	of := func(name string, weight uint32, labels map[string]string) *profiles.Profile {
		return &profiles.Profile{
			Name: name, Policy: &profiles.Policy{Labels: labels},
			Routes: []profiles.Route{{Name: "all", Match: profiles.All{}, Backends: []profiles.Backend{
				{Target: profiles.Target{Authority: "web:80", Weight: weight}},
			}}},
		}
	}
	source := sequence{
		of("web.example", 1, nil), of("web.example", 2, nil),
		of("other.example", 2, nil), of("other.example", 2, map[string]string{"parent_name": "other"}),
	}
	s := o.profileSource("10.0.0.1:80", source, &o.balanced)
	assert.Empty(t, s.of(nil).name, "an address has no name")
	var received []*profiles.Profile
	for p, err := range s.Watch(t.Context(), "10.0.0.1:80") {
		require.NoError(t, err)
		received = append(received, p)
		assert.Same(t, p.Value, p.Routes[0].Backends[0].Value)
	}
	require.Len(t, received, 4)
	assert.Equal(t, []string{"web.example:80"}, received[0].Value.(*profileValue).canonical)
	assert.Same(t, received[0].Value, received[1].Value)
	assert.Same(t, received[0].Routes[0].Value, received[1].Routes[0].Value)
	assert.NotSame(t, received[1].Value, received[2].Value, "another name")
	assert.NotSame(t, received[1].Routes[0].Value, received[2].Routes[0].Value)
	assert.NotSame(t, received[2].Value, received[3].Value, "other labels")
	for _, p := range source {
		assert.Nil(t, p.Value, "other routers share the source's profiles")
		assert.Nil(t, p.Routes[0].Value)
		assert.Nil(t, p.Routes[0].Backends[0].Value)
	}
}
