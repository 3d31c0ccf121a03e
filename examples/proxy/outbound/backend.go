package outbound

import (
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/gotower/gotower/examples/internal/setting"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/profiles"
)

// backend is a target of requests that have a balancer, and the balancer's key in a cache. It has
// an identity of its own, so that a new profile can change the balancer's settings without losing
// its connections and statistics.
type backend struct {
	authority string
	parent    meters.Parent
	balancing *setting.Value[profiles.Balancing]
}

// String returns the target's authority, host:port.
func (b *backend) String() string { return b.authority }

// backendKey identifies a backend by its target, the profile's parent resource and the current
// settings. Routes with equal keys share a balancer. Like linkerd's proxy, the same target gets a
// separate balancer for each parent.
type backendKey struct {
	authority string
	parent    meters.Parent
	profiles.Balancing
}

// backends finds the backends in use by their keys. It holds them weakly: routers and caches keep
// them alive.
type backends struct {
	mu    sync.Mutex
	known map[backendKey]weak.Pointer[backend]
}

// get returns the backend for k, and creates it if necessary.
func (b *backends) get(k backendKey) *backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Weak pointers become nil when the backend is no longer used.
	if old := b.known[k].Value(); old != nil {
		return old
	}
	// Before the map grows, remove the backends that have been collected.
	maps.DeleteFunc(b.known, func(_ backendKey, p weak.Pointer[backend]) bool { return p.Value() == nil })
	entry := &backend{k.authority, k.parent, setting.New(k.Balancing)}
	if b.known == nil {
		b.known = make(map[backendKey]weak.Pointer[backend])
	}
	b.known[k] = weak.Make(entry)
	return entry
}

// update prepares for the profile next, which replaces old of the same parent. If a target's
// settings have changed, its backend is kept and gets the new settings. If next uses both the old
// and the new settings, in different routes, it needs two backends, and the old one stays
// unchanged.
func (b *backends) update(parent meters.Parent, old, next *profiles.Profile) {
	oldKeys := keysOf(old, parent)
	newKeys := keysOf(next, parent)
	b.mu.Lock()
	defer b.mu.Unlock()
	// For each new key, look for an old key of the same target that is not used any more.
	for _, k := range newKeys {
		i := slices.IndexFunc(oldKeys, func(o backendKey) bool { return o.authority == k.authority && !slices.Contains(newKeys, o) })
		// Nothing to move: no old key is free, or the new key already has a backend.
		if i < 0 || slices.Contains(oldKeys, k) || b.known[k].Value() != nil {
			continue
		}
		// The backend takes over the new key, and its balancer follows the new settings.
		if changed := b.known[oldKeys[i]].Value(); changed != nil {
			delete(b.known, oldKeys[i])
			b.known[k] = weak.Make(changed)
			changed.balancing.Set(k.Balancing)
		}
		// An old key can only be moved once.
		oldKeys = slices.Delete(oldKeys, i, i+1)
	}
}

// keysOf returns the distinct keys of the backends that p balances.
func keysOf(p *profiles.Profile, parent meters.Parent) (keys []backendKey) {
	if p == nil {
		return nil
	}
	for _, r := range p.Routes {
		for _, b := range r.Backends {
			k := backendKey{b.Authority, parent, b.Balancing}
			// Skip backends that need no balancer: a single endpoint, an unknown target, or one that gets no
			// requests.
			if b.Endpoint == nil && b.Missing == "" && b.Weight > 0 && !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}
