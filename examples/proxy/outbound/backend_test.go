package outbound

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/profiles"
)

func profileTo(balancing ...profiles.Balancing) *profiles.Profile {
	p := &profiles.Profile{}
	for _, b := range balancing {
		backend := profiles.Backend{Target: profiles.Target{Authority: "web:80", Weight: 1}, Balancing: b}
		p.Routes = append(p.Routes, profiles.Route{Backends: []profiles.Backend{backend}})
	}
	return p
}

// A profile with other settings changes the backend. As long as a profile contains both settings,
// there are two backends.
func TestBackendsUpdate(t *testing.T) {
	parent := meters.Parent{Name: "web"}
	slow, fast, last := profiles.Balancing{Decay: time.Minute}, profiles.Balancing{Decay: time.Second}, profiles.Balancing{QueueCapacity: 7}
	key := func(b profiles.Balancing) backendKey { return backendKey{"web:80", parent, b} }
	var bs backends
	bs.update(parent, nil, profileTo(slow))
	first := bs.get(key(slow))
	require.Same(t, first, bs.get(key(slow)))
	require.NotSame(t, first, bs.get(backendKey{"web:80", meters.Parent{}, slow}))

	bs.update(parent, profileTo(slow), profileTo(fast))
	require.Same(t, first, bs.get(key(fast)))
	require.Equal(t, fast, first.balancing.Get())
	bs.update(parent, profileTo(slow), profileTo(fast)) // by another router
	require.Same(t, first, bs.get(key(fast)))

	bs.update(parent, profileTo(fast), profileTo(slow, fast))
	second := bs.get(key(slow))
	require.Same(t, first, bs.get(key(fast)), "the profile has both settings")
	require.NotSame(t, first, second)

	bs.update(parent, profileTo(slow, fast), profileTo(fast, last))
	require.Same(t, first, bs.get(key(fast)))
	require.Same(t, second, bs.get(key(last)))
	require.Equal(t, last, second.balancing.Get())

	bs.update(parent, profileTo(fast, last), profileTo(fast))
	bs.update(parent, profileTo(fast), profileTo(last))
	require.Same(t, second, bs.get(key(last)), "it is in use with these settings")
	require.Equal(t, fast, first.balancing.Get())
	runtime.KeepAlive(first)
	runtime.KeepAlive(second)

	bs.update(parent, profileTo(fast), profileTo()) // no route
	missing := profileTo(fast)
	missing.Routes[0].Backends[0].Missing = "missing"
	missing.Routes = append(missing.Routes, profiles.Route{})
	assert.Empty(t, keysOf(missing, parent))
}

// An unused backend is forgotten.
func TestBackendsForget(t *testing.T) {
	var bs backends
	for i := range 1000 {
		bs.get(backendKey{authority: "web:80", Balancing: profiles.Balancing{QueueCapacity: i}})
		if i%100 == 0 {
			runtime.GC()
		}
	}
	assert.Less(t, len(bs.known), 300)
}
